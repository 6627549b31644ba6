//! How much of what was asked to lie in huge pages does.

use forthwith_core::units::Bytes;
use std::fmt;

/// The memory of this process that asks for huge pages: weights, KV cache and workspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HugePages {
    /// What is there so far; what was never written takes no memory.
    pub(crate) resident: Bytes,
    /// What of it lies in huge pages.
    pub(crate) huge: Bytes,
}

impl HugePages {
    /// Asks the system; `None` where it does not tell.
    pub(crate) fn now() -> Option<Self> {
        let text = std::fs::read_to_string("/proc/self/smaps").ok()?;
        Some(Self::read(&text))
    }

    /// Sums over the mappings of `smaps` that were advised to use huge pages.
    fn read(smaps: &str) -> Self {
        let (mut resident, mut huge) = (0, 0);
        let mut mapping = (0, 0);
        for line in smaps.lines() {
            let Some((name, value)) = line.split_once(':') else {
                continue;
            };
            let kilobytes = || {
                let number = value.trim().strip_suffix(" kB");
                number.map_or(0, |number| number.parse().unwrap_or(0))
            };
            match name {
                "Rss" => mapping.0 = kilobytes(),
                "AnonHugePages" => mapping.1 = kilobytes(),
                // The last line of a mapping.
                "VmFlags" => {
                    if value.split(' ').any(|flag| flag == "hg") {
                        resident += mapping.0;
                        huge += mapping.1;
                    }
                    mapping = (0, 0);
                }
                _ => {}
            }
        }
        Self {
            resident: Bytes::new(1024 * resident),
            huge: Bytes::new(1024 * huge),
        }
    }

    /// What a user should know: reading weights from small pages is slower.
    pub(crate) fn warning(self) -> Option<String> {
        let few = self.huge.get() < self.resident.get() / 2;
        few.then(|| {
            format!(
                "only {self}: reading them takes longer; huge pages come where \
                 /sys/kernel/mm/transparent_hugepage/enabled says `always` or `madvise` and free \
                 memory is not in small pieces"
            )
        })
    }
}

impl fmt::Display for HugePages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} of the {} that weights, workspace and KV cache take so far lie in huge pages",
            self.huge, self.resident
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "\
5581d0000000-5581d0100000 r-xp 00000000 fe:00 1 /usr/bin/other:name
Rss:                1024 kB
AnonHugePages:         0 kB
VmFlags: rd ex mr mw me
7f0000000000-7f0000400000 rw-p 00000000 00:00 0
Size:               4096 kB
Rss:                3072 kB
AnonHugePages:      2048 kB
VmFlags: rd wr mr mw me ac hg
7f0000400000-7f0000800000 rw-p 00000000 00:00 0
Rss:                4096 kB
AnonHugePages:      4096 kB
VmFlags: rd wr mr mw me ac
";

    #[test]
    fn mappings_that_ask_for_huge_pages_count() {
        let pages = HugePages::read(SMAPS);
        assert_eq!(
            (pages.resident, pages.huge),
            (Bytes::new(3 << 20), Bytes::new(2 << 20))
        );
        assert_eq!(
            pages.to_string(),
            "2.0 MiB of the 3.0 MiB that weights, workspace and KV cache take so far lie in huge pages"
        );
        assert_eq!(pages.warning(), None);
        let none = HugePages {
            huge: Bytes::ZERO,
            ..pages
        };
        assert!(
            none.warning()
                .unwrap()
                .starts_with("only 0 B of the 3.0 MiB")
        );
    }
}
