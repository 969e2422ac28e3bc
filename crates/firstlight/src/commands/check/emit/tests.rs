use super::*;
use clap::{Parser, ValueEnum};
use serde_json::Value;

fn check(arguments: &[&str]) -> anyhow::Result<String> {
    let words = [&["firstlight", "check"], arguments].concat();
    let cli = crate::cli::Cli::try_parse_from(words)?;
    let crate::cli::Command::Check(check) = &cli.command else { anyhow::bail!("no check") };
    text(check.fleet.emit.unwrap(), check)
}

#[test]
fn every_kind_is_filled_in_and_its_command_is_one_of_ours() {
    for kind in ClusterFile::value_variants() {
        let name = kind.to_possible_value().unwrap().get_name().to_owned();
        let certified = matches!(kind, ClusterFile::SlurmProlog | ClusterFile::InitContainer);
        let ops: &[&str] = if certified { &[] } else { &["--op", "ssd,kda"] };
        let emit = ["--emit", &name, "--nodes", "4", "--image", "registry/firstlight:1"];
        let got = check(&[&emit[..], ops].concat()).unwrap();
        assert!(!got.contains("{{") && !got.contains("}}"), "{got}");
        // The options after `check`, up to the shell's next word.
        let plain = got.replace(['"', ','], " ").replace("[", " ");
        let line = plain.lines().find(|line| line.contains("--budget")).unwrap();
        let words = line.split_whitespace().skip_while(|word| *word != "check").collect::<Vec<_>>();
        let end =
            words.iter().position(|word| word.starts_with(['>', ']', '"']) || word.ends_with(';'));
        let own: Vec<&str> = std::iter::once("firstlight")
            .chain(words[..end.unwrap_or(words.len())].iter().copied())
            .collect();
        // Without its comma, a list of ops is two words.
        let own: Vec<&str> = own.into_iter().filter(|word| *word != "kda").collect();
        crate::cli::Cli::try_parse_from(&own)
            .unwrap_or_else(|error| panic!("{name}: {own:?}: {error}"));
        assert!(
            certified
                || own
                    .windows(2)
                    .any(|pair| pair == ["--op", "ssd"] || pair == ["--op", "ssd,kda"]),
            "{name}: {own:?}"
        );
    }
}

#[test]
fn health_check_files_use_a_budget_below_one_minute() {
    for kind in ["slurm-healthcheck", "node-problem-detector"] {
        assert!(check(&["--emit", kind]).unwrap().contains("check --budget 50 --quick"));
        assert!(
            check(&["--emit", kind, "--budget", "20", "--full"])
                .unwrap()
                .contains("check --budget 20 --full")
        );
        let said = check(&["--emit", kind, "--budget", "60"]).unwrap_err().to_string();
        assert!(said.contains("--budget 60 is too long"), "{said}");
    }
}

#[test]
fn kubernetes_files_name_service_ranks_and_leader() {
    let documents = |kind: &str| -> Vec<Value> {
        let text = check(&["--emit", kind, "--nodes", "3"]).unwrap();
        text.split("\n---\n").map(|document| yaml_serde::from_str(document).unwrap()).collect()
    };
    let job = documents("kubernetes-job");
    let (service, job) = (&job[0], &job[1]);
    assert_eq!((&job["spec"]["completions"], &job["spec"]["parallelism"]), (&3.into(), &3.into()));
    let pod = &job["spec"]["template"]["spec"];
    // The pods get DNS names through the service that selects them.
    assert_eq!(pod["subdomain"], service["metadata"]["name"]);
    assert_eq!(service["spec"]["selector"], job["spec"]["template"]["metadata"]["labels"]);
    let env = pod["containers"][0]["env"].as_array().unwrap();
    let value = |name: &str| env.iter().find(|env| env["name"] == name).unwrap()["value"].as_str();
    assert_eq!(value("FIRSTLIGHT_RANKS"), Some("3"));
    assert_eq!(value("FIRSTLIGHT_LEADER"), Some("firstlight-check-0.firstlight-check"));
    assert_eq!(documents("daemonset")[0]["kind"], "DaemonSet");
    assert_eq!(documents("skypilot")[0]["num_nodes"], 3);
    let detector: Value =
        serde_json::from_str(&check(&["--emit", "node-problem-detector"]).unwrap()).unwrap();
    assert_eq!(detector["rules"][0]["condition"], detector["conditions"][0]["type"]);
}

#[test]
fn a_certificate_is_of_all_kernels() {
    for kind in ["slurm-prolog", "init-container"] {
        for option in [&["--op", "ssd"][..], &["--redact"]] {
            let said = check(&[&["--emit", kind], option].concat()).unwrap_err().to_string();
            assert!(said.contains("is not allowed here"), "{said}");
        }
    }
}

/// Runs an emitted prolog with a firstlight whose `gate` accepts at once, after `check` was run, or never; returns its
/// status and the commands.
#[cfg(unix)]
fn prolog(accepts_at_once: bool, check_mends: bool) -> (Option<i32>, Vec<String>) {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let stub = format!(
        "#!/bin/sh\necho \"$1\" >> {log}\ncase $1 in\ngate) [ -e {good} ] ;;\ncheck) {mend} touch {certificate} ;;\nesac\n",
        log = path("log").display(),
        good = path("good").display(),
        mend =
            if check_mends { format!("touch {};", path("good").display()) } else { String::new() },
        certificate = path("n1.certificate.json").display(),
    );
    std::fs::write(path("firstlight"), stub).unwrap();
    std::fs::set_permissions(path("firstlight"), std::fs::Permissions::from_mode(0o755)).unwrap();
    if accepts_at_once {
        std::fs::write(path("good"), "").unwrap();
        std::fs::write(path("n1.certificate.json"), "{}").unwrap();
    }
    std::fs::write(path("prolog"), check(&["--emit", "slurm-prolog"]).unwrap()).unwrap();
    let search = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap());
    let status = std::process::Command::new("sh")
        .arg(path("prolog"))
        .env("PATH", search)
        .env("SLURMD_NODENAME", "n1")
        .env("FIRSTLIGHT_RUNS", folder.path())
        .stdout(std::process::Stdio::null())
        .status()
        .unwrap();
    let log = std::fs::read_to_string(path("log")).unwrap_or_default();
    (status.code(), log.lines().map(str::to_owned).collect())
}

#[test]
#[cfg(unix)]
fn a_prolog_checks_only_nodes_without_a_valid_certificate() {
    let commands = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    assert_eq!(prolog(true, false), (Some(0), commands(&["gate"])));
    assert_eq!(prolog(false, true), (Some(0), commands(&["check", "gate"])));
    assert_eq!(prolog(false, false), (Some(1), commands(&["check", "gate"])));
}
