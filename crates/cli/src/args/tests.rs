//! The contract of the command line.

use super::*;
use crate::schedule::Schedule;
use clap::builder::Resettable;
use clap::{CommandFactory as _, FromArgMatches as _};

/// Parses without a look at the environment of whoever runs the tests.
fn parse(line: &[&str]) -> Result<Args, clap::Error> {
    let deaf = |command: clap::Command| command.mut_args(|arg| arg.env(Resettable::Reset));
    let command = deaf(Args::command()).mut_subcommands(deaf);
    let matches = command.try_get_matches_from([&["forthwith"], line].concat())?;
    Args::from_arg_matches(&matches)
}

fn run_args(line: &[&str]) -> RunArgs {
    match parse(&[&["run"], line].concat()).unwrap().command {
        Command::Run(args) => args,
        other => panic!("{other:?}"),
    }
}

fn serve_args(line: &[&str]) -> ServeArgs {
    match parse(&[&["serve"], line].concat()).unwrap().command {
        Command::Serve(args) => *args,
        other => panic!("{other:?}"),
    }
}

#[test]
fn definition_is_sound() {
    Args::command().debug_assert();
}

#[test]
fn every_subcommand_has_examples() {
    for mut command in Args::command().get_subcommands().cloned() {
        let name = command.get_name().to_owned();
        let help = command.render_long_help().to_string();
        assert!(
            help.contains(&format!("Examples:\n  forthwith {name}")),
            "{help}"
        );
    }
}

#[test]
fn every_flag_has_its_environment_variable() {
    let root = Args::command();
    let nested = root
        .get_subcommands()
        .flat_map(clap::Command::get_subcommands);
    let commands: Vec<_> = root
        .get_subcommands()
        .chain(nested)
        .cloned()
        .chain([root.clone()])
        .collect();
    for argument in commands.iter().flat_map(clap::Command::get_arguments) {
        let Some(flag) = argument
            .get_long()
            .filter(|flag| !["help", "version"].contains(flag))
        else {
            continue;
        };
        let expected = format!("FORTHWITH_{}", flag.replace('-', "_").to_uppercase());
        let found = argument.get_env().and_then(|name| name.to_str());
        assert_eq!(found, Some(expected.as_str()), "--{flag}");
    }
}

#[test]
fn the_example_of_the_toy_parses() {
    let line = "--model toy --temperature 0 --max-tokens 6 --echo";
    let words: Vec<&str> = line.split(' ').chain(["the server"]).collect();
    let args = run_args(&words);
    assert_eq!((args.model.as_str(), args.temperature), ("toy", Some(0.0)));
    assert_eq!((args.max_tokens, args.echo), (Some(6), true));
    assert_eq!(args.prompt.as_deref(), Some("the server"));
}

#[test]
fn defaults_are_the_documented_ones() {
    let args = run_args(&[]);
    assert_eq!((args.model.as_str(), args.prompt), (DEFAULT_MODEL, None));
    assert!(!args.raw && !args.echo && !args.stats);
    let args = serve_args(&[]);
    assert_eq!(args.model, [DEFAULT_MODEL]);
    assert_eq!(
        (args.host.to_string().as_str(), args.port),
        ("127.0.0.1", 8080)
    );
    assert_eq!((args.context, args.kv_memory), (None, None));
}

#[test]
fn serve_takes_several_models_and_sizes() {
    let args = serve_args(&["--model", "a.gguf", "--model", "toy", "--kv-memory", "2GiB"]);
    assert_eq!(args.model, ["a.gguf", "toy"]);
    assert_eq!(args.kv_memory, Some(Bytes::new(2 << 30)));
}

/// What the help says is what happens.
#[test]
fn defaults_of_the_schedule_are_those_in_the_help() {
    let shown = Schedule::new(&serve_args(&[]).schedule).to_string();
    let command = Args::command();
    let serve = command.find_subcommand("serve").unwrap();
    let mut told = 0;
    for argument in serve.get_arguments() {
        let help = argument
            .get_help()
            .map(ToString::to_string)
            .unwrap_or_default();
        let flag = argument.get_long().unwrap_or_default();
        let default = help
            .split_once("[default: ")
            .map(|(_, rest)| rest.trim_end_matches(']'));
        if let Some(default) = default.filter(|_| shown.contains(&format!("{flag} "))) {
            let wanted = format!("{flag} {default} (default)");
            assert!(shown.contains(&wanted), "{wanted}: {shown}");
            told += 1;
        }
    }
    assert_eq!(told, 8);
}

#[test]
fn shared_flags_go_anywhere() {
    for line in [
        ["--offline", "list", "--cache", "/c"],
        ["list", "--cache", "/c", "--offline"],
    ] {
        let shared = parse(&line).unwrap().shared;
        assert!(shared.offline);
        assert_eq!(shared.cache, Some("/c".into()));
    }
}

#[test]
fn values_out_of_range_are_bad_input() {
    for line in [
        "run --temperature NaN",
        "run --temperature inf",
        "run --temperature -1",
        "run --temperature 2.01",
        "run --top-p 1.5",
        "run --top-k -1",
        "run --max-tokens 0",
        "run --max-tokens 99999999999999999999",
        "run --threads 0",
        "run --threads 1025",
        "run --seed x",
        "run --isa mmx",
        "run --raw --chat-template t",
        "serve --port 65536",
        "serve --host example",
        "serve --context 0",
        "serve --context 1",
        "serve --kv-memory 0",
        "serve --kv-memory 2XB",
        "serve --max-running 0",
        "serve --max-running 513",
        "serve --max-waiting 0",
        "serve --max-waiting-tokens 0",
        "serve --max-waiting-tokens 1000000001",
        "serve --step-tokens 31",
        "serve --step-tokens 8193",
        "serve --prefix-cache maybe",
        "serve --target-gap 100%",
        "serve --target-gap 50",
        "serve --stuck-after 0s",
        "serve --stuck-after 30",
        "serve --stall-timeout 0s",
        "serve --stall-timeout 25h",
        "list extra",
        "nothing",
    ] {
        let words: Vec<&str> = line.split(' ').collect();
        let error = parse(&words).expect_err(line);
        assert_eq!(error.exit_code(), 2, "{line}");
    }
}

#[test]
fn a_negative_number_is_a_wrong_value_and_no_flag() {
    for line in [
        "run --temperature -1",
        "run --top-p -0.5",
        "run --top-k -1",
        "run --seed -7",
        "run --max-tokens -1",
        "run --threads -1",
        "serve --port -1",
        "serve --context -1",
        "serve --kv-memory -1",
        "serve --max-running -1",
        "serve --max-waiting -1",
        "serve --step-tokens -1",
        "serve --stall-timeout -1",
        "serve --target-gap -1",
    ] {
        let words: Vec<&str> = line.split(' ').collect();
        let message = parse(&words).expect_err(line).to_string();
        let told = format!("invalid value '{}' for '{}", words[2], words[1]);
        assert!(message.contains(&told), "{message}");
    }
    assert_eq!(run_args(&["-5"]).prompt.as_deref(), Some("-5"));
}
