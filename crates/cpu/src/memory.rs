//! Zeroed anonymous memory in huge pages, and slices of it shared between the thread team.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;

/// The system refused memory.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot reserve {bytes} bytes of memory: {reason}")]
pub struct OutOfMemory {
    bytes: usize,
    reason: String,
}

/// Plain numbers: any bit pattern is a value and zero bits are zero.
///
/// # Safety
/// Implementors have no padding and accept every bit pattern.
pub(crate) unsafe trait Plain: Copy + Send + Sync + 'static {}
// SAFETY: integers and floats accept every bit pattern.
unsafe impl Plain for u8 {}
// SAFETY: as above.
unsafe impl Plain for i8 {}
// SAFETY: as above.
unsafe impl Plain for u16 {}
// SAFETY: as above.
unsafe impl Plain for i32 {}
// SAFETY: as above.
unsafe impl Plain for usize {}
// SAFETY: as above.
unsafe impl Plain for f32 {}

const HUGE_PAGE: usize = 2 << 20;

/// The size of a mapping: whole huge pages from one on, since Linux aligns only those.
fn mapped(bytes: usize) -> usize {
    if bytes < HUGE_PAGE {
        return bytes;
    }
    bytes.checked_next_multiple_of(HUGE_PAGE).unwrap_or(bytes)
}

/// An owned, zeroed, page-aligned array that asks for huge pages.
pub(crate) struct Buffer<T: Plain> {
    start: NonNull<T>,
    len: usize,
}

// SAFETY: the buffer owns its memory like a `Vec`.
unsafe impl<T: Plain> Send for Buffer<T> {}
// SAFETY: shared access only reads.
unsafe impl<T: Plain> Sync for Buffer<T> {}

impl<T: Plain> Buffer<T> {
    /// `len` zeros. Pages are touched when first used.
    pub(crate) fn zeroed(len: usize) -> Result<Self, OutOfMemory> {
        let bytes = mapped(len.saturating_mul(size_of::<T>()));
        if bytes == 0 {
            return Ok(Self {
                start: NonNull::dangling(),
                len,
            });
        }
        // SAFETY: a fresh anonymous mapping; no existing memory is involved.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            let reason = std::io::Error::last_os_error().to_string();
            return Err(OutOfMemory { bytes, reason });
        }
        #[cfg(target_os = "linux")]
        // SAFETY: the mapping was made above; the advice changes no content.
        unsafe {
            libc::madvise(start, bytes, libc::MADV_HUGEPAGE);
        }
        let start = NonNull::new(start.cast()).expect("a mapping does not start at null");
        Ok(Self { start, len })
    }

    /// A view that several threads may write through, each its own part.
    pub(crate) fn shared(&mut self) -> SharedSlice<'_, T> {
        SharedSlice {
            start: self.start,
            len: self.len,
            owner: PhantomData,
        }
    }
}

impl<T: Plain> Deref for Buffer<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        // SAFETY: `start` points to `len` initialized elements that the buffer owns.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<T: Plain> DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`, and `&mut self` excludes other users.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl<T: Plain> Drop for Buffer<T> {
    fn drop(&mut self) {
        let bytes = mapped(self.len * size_of::<T>());
        if bytes > 0 {
            // SAFETY: the mapping was made in `zeroed` with this size and is not used any more.
            unsafe { libc::munmap(self.start.as_ptr().cast(), bytes) };
        }
    }
}

/// A mutable slice that a thread team divides among its members.
pub(crate) struct SharedSlice<'a, T> {
    start: NonNull<T>,
    len: usize,
    owner: PhantomData<&'a mut [T]>,
}

impl<T> Clone for SharedSlice<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for SharedSlice<'_, T> {}

// SAFETY: access goes through `range` and `range_mut`, whose callers divide the slice.
unsafe impl<T: Plain> Send for SharedSlice<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Plain> Sync for SharedSlice<'_, T> {}

impl<'a, T: Plain> SharedSlice<'a, T> {
    /// Shares a slice.
    pub(crate) fn new(slice: &'a mut [T]) -> Self {
        let len = slice.len();
        let start = NonNull::new(slice.as_mut_ptr()).expect("slices do not start at null");
        Self {
            start,
            len,
            owner: PhantomData,
        }
    }

    /// What lies behind the first `start` elements.
    ///
    /// # Panics
    /// If there are not so many.
    pub(crate) fn tail(self, start: usize) -> Self {
        assert!(start <= self.len, "part within the slice");
        Self {
            // SAFETY: within the slice or at its end.
            start: unsafe { self.start.add(start) },
            len: self.len - start,
            owner: PhantomData,
        }
    }

    pub(crate) fn len(self) -> usize {
        self.len
    }

    /// Reads a part.
    ///
    /// # Safety
    /// No thread writes to the part while the result lives (a barrier separates phases).
    pub(crate) unsafe fn range(self, range: Range<usize>) -> &'a [T] {
        assert!(
            range.start <= range.end && range.end <= self.len,
            "part within the slice"
        );
        // SAFETY: within bounds; the caller excludes writers.
        unsafe {
            std::slice::from_raw_parts(
                self.start.as_ptr().add(range.start),
                range.end - range.start,
            )
        }
    }

    /// Writes a part.
    ///
    /// # Safety
    /// No other thread touches the part while the result lives.
    pub(crate) unsafe fn range_mut(&self, range: Range<usize>) -> &'a mut [T] {
        assert!(
            range.start <= range.end && range.end <= self.len,
            "part within the slice"
        );
        // SAFETY: within bounds; the caller excludes all others.
        unsafe {
            std::slice::from_raw_parts_mut(
                self.start.as_ptr().add(range.start),
                range.end - range.start,
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_start_zeroed_and_hold_what_is_written() {
        let mut buffer = Buffer::<f32>::zeroed(5000).unwrap();
        assert!(buffer.iter().all(|&value| value == 0.0));
        buffer[4999] = 2.5;
        assert_eq!(buffer[4999], 2.5);
        assert!(Buffer::<f32>::zeroed(0).unwrap().is_empty());
    }

    #[test]
    fn impossible_sizes_are_errors() {
        assert!(Buffer::<f32>::zeroed(usize::MAX / 8).is_err());
    }
}
