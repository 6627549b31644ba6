//! `forthwith list`: the catalogue and what of it is cached.

use crate::args::SharedArgs;
use crate::error::Failure;
use forthwith_core::units::Bytes;
use forthwith_hub::ListEntry;
use std::io::{self, Write};

/// Prints one line per model.
pub(crate) fn run(shared: &SharedArgs) -> Result<(), Failure> {
    let entries = shared.hub().list();
    print(&entries, &mut io::stdout().lock()).map_err(|error| Failure::output(&error))
}

fn print(entries: &[ListEntry], out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{:14}{:>11}  {:9}DESCRIPTION", "NAME", "SIZE", "STATE")?;
    for entry in entries {
        let size = entry
            .bytes
            .as_ref()
            .map_or_else(|| "-".to_owned(), Bytes::to_string);
        let state = match (entry.bytes, &entry.path) {
            (None, _) => "built in",
            (_, Some(_)) => "cached",
            (_, None) => "-",
        };
        writeln!(
            out,
            "{:14}{size:>11}  {state:9}{}",
            entry.alias, entry.description
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_names_sizes_and_states() {
        let hub = forthwith_hub::Hub::new("/nowhere".into(), true);
        let mut entries = hub.list();
        entries[1].path = Some("/somewhere".into());
        let mut out = Vec::new();
        print(&entries, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[1],
            "smollm2          93.8 MiB  -        SmolLM2 135M Instruct, chat, Q4_1 (Apache-2.0)"
        );
        assert!(lines[2].starts_with("gemma3-270m     241.4 MiB  cached   Gemma"));
        assert!(lines[3].starts_with("toy                     -  built in "));
    }
}
