//! `firstlight plan`: its output and exit status.

use std::path::Path;
use std::process::{Command, Output};

fn plan(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_firstlight"));
    command.arg("plan").args(arguments).env("NO_COLOR", "1").env_remove("COLUMNS");
    command.output().expect("firstlight runs")
}

/// The same on a machine whose PATH is one folder, with a stand-in `python` file and a stand-in uv with these cases.
fn plan_with(folder: &Path, python: &str, uv: &str, arguments: &[&str]) -> Output {
    use std::os::unix::fs::PermissionsExt;
    let bin = folder.join("bin");
    std::fs::create_dir_all(&bin).expect("a folder");
    std::fs::write(bin.join(python), "\x7fELF").expect("writes");
    let script = format!("#!/bin/sh\ncase \"$*\" in\n--version) echo 'uv 0.13.9' ;;\n{uv}esac\n");
    std::fs::write(bin.join("uv"), script).expect("writes");
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(bin.join("uv"), mode).expect("sets");
    let mut command = Command::new(env!("CARGO_BIN_EXE_firstlight"));
    command.arg("plan").args(arguments).env("NO_COLOR", "1").env("PATH", &bin);
    command.env("HOME", folder).env_remove("XDG_CACHE_HOME").env_remove("XDG_DATA_HOME");
    command.output().expect("firstlight runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

#[test]
fn plan_fits_80_columns() {
    let output = plan(&["--for", "granite-a10", "--machine", "a10"]);
    let out = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{out}{}", text(&output.stderr));
    let commands = |line: &str| line.trim_start().starts_with("firstlight ");
    let wide = out.lines().find(|line| line.chars().count() > 80 && !commands(line));
    assert_eq!(wide, None, "{out}");
    for words in ["plan for a10", "flash-attn", "mamba-ssm", "--lock --emit plan.toml -o plan.toml"]
    {
        assert!(out.contains(words), "{words}: {out}");
    }
    let explained = text(&plan(&["--for", "granite-a10", "--machine", "a10", "--explain"]).stdout);
    assert!(explained.contains("torch 2.15.0 cu132") && explained.contains("table of firstlight"));
}

#[test]
fn name_that_resembles_a_known_package_is_noticed() {
    let folder = tempfile::tempdir().expect("a folder");
    // Without a network, as the index has no package vlm of this test.
    let uv = "*compile*) echo 'error: Request failed' >&2; echo '  cause: Failed to fetch: `https://pypi.org/simple/x/`' >&2\n\
              echo '  cause: dns error' >&2; exit 2 ;;\n";
    let warned = |want: &str| {
        let output = plan_with(folder.path(), "python3.11", uv, &[want, "--machine", "a10"]);
        text(&output.stdout).split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let out = warned("vlm");
    assert!(out.contains("`vlm` is planned as it is written, and is not `vllm`"), "{out}");
    let out = warned("torhc");
    assert!(out.contains("is not `torch`: if that was meant, plan `torch`"), "{out}");
    for known in ["vllm", "numpy"] {
        let out = warned(known);
        assert!(out.contains("plan for a10") && !out.contains("is planned as it is"), "{out}");
    }
    let uv = "*compile*) echo 'error: No solution found when resolving dependencies' >&2\n\
              echo '  cause: Because torhc was not found in the package registry and firstlight-plan depends on torhc, we can conclude that your requirements are unsatisfiable.' >&2\n\
              exit 1 ;;\n";
    let output = plan_with(folder.path(), "python3.11", uv, &["torhc", "--machine", "a10"]);
    let said = text(&output.stderr);
    assert!(said.contains("there is no package `torhc` on "), "{said}");
    assert!(said.contains("hint: did you mean `torch`?"), "{said}");
}

#[test]
fn unreachable_index_of_torch_offers_the_torch_of_pypi() {
    let folder = tempfile::tempdir().expect("a folder");
    let uv = "pip*) echo 'error: Request failed after 3 retries' >&2; echo '  cause: Failed to fetch: https://download.pytorch.org/whl/cu130/torch/' >&2; echo '  cause: dns error' >&2; exit 2 ;;\n";
    let output =
        plan_with(folder.path(), "python0", uv, &["torch", "--machine", "rtx4090", "--lock"]);
    let said = text(&output.stderr).split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("cannot reach https://download.pytorch.org/whl/cu130/torch/"), "{said}");
    assert!(said.contains("`--cuda 13.2` plans the torch of PyPI"), "{said}");
    // The proposed plan takes it from there.
    let output = plan(&["torch", "--machine", "rtx4090", "--cuda", "13.2", "--json"]);
    let plan: facts::InstallPlan = serde_json::from_slice(&output.stdout).expect("a plan");
    assert!(plan.packages.iter().any(|it| it.name == "torch" && it.index == "pypi"), "{plan:?}");
}

#[test]
fn options_that_apply_to_nothing_are_refused() {
    let output = plan(&["torch", "--allow-source", "nope", "--machine", "a100"]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("the plan has no requirement `nope`"), "{said}");
    let output = plan(&["six", "--cuda", "99.9", "--machine", "cpu-x86_64"]);
    let said = text(&output.stderr);
    assert!(said.contains("firstlight plan six --machine a100"), "{said}");
}

#[test]
fn refusal_is_a_finding_in_text_and_json() {
    let output = plan(&["torch", "--machine", "jetson-orin"]);
    let out = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{out}");
    assert!(out.contains("these cannot all hold") && out.contains("jetson-ai-lab"), "{out}");
    let output = plan(&["flash-attn", "--machine", "gh200", "--json"]);
    let json: facts::InstallPlan = serde_json::from_slice(&output.stdout).expect("a plan");
    assert_eq!(json.target.name, "gh200");
    let output = plan(&["torch", "--machine", "jetson-orin", "--json"]);
    let json: facts::PlanRefusal = serde_json::from_slice(&output.stdout).expect("a refusal");
    assert!(!json.conflict.is_empty());
}

#[test]
fn driver_older_than_cuda_11_has_no_plan() {
    let output = plan(&["torch", "--machine", "a100", "--driver", "440.33.01"]);
    let out = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{out}");
    assert!(out.contains("no plan for a100"), "{out}");
    assert!(out.contains("the driver is 440.33.01, which runs CUDA 10 and older"), "{out}");
}

#[test]
fn suggests_corrections_of_misspelt_names() {
    for (arguments, words) in [
        (&["--machine", "gh20"][..], "did you mean `gh200`?"),
        (&["--for", "granite-a1", "--machine", "a10"], "did you mean `granite-a10`?"),
        (&["--machine", "a10", "--emit", "plan.tml"], "did you mean `plan.toml`?"),
        (&["--machine", "a10", "flash-attn>>2"], "is not a requirement"),
        (
            &["--machine", "a10", "torch @ https://example.org/torch.whl"],
            "a plan takes releases of package indexes, not files at an address",
        ),
        (&["--machine", "a100", "--driver", "9999"], "driver branches have three digits"),
        (&["--machine", "cpu-x86_64", "--driver", "580.65.06"], "has no NVIDIA GPU"),
        (&["--machine", "thor", "--driver", "580.65.06"], "whose driver is part of JetPack"),
    ] {
        let output = plan(arguments);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains(words), "{words}: {error}");
    }
}

#[test]
fn model_config_selects_kernels() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = r#"{"model_type": "mamba2", "architectures": ["Mamba2ForCausalLM"], "num_hidden_layers": 2,
        "hidden_size": 1024, "vocab_size": 1000, "state_size": 128, "num_heads": 32, "head_dim": 64, "expand": 2,
        "n_groups": 1, "conv_kernel": 4}"#;
    std::fs::write(folder.path().join("config.json"), config).expect("writes");
    let path = folder.path().to_str().expect("UTF-8");
    let output = plan(&["--for", path, "--machine", "h200"]);
    let out = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{out}{}", text(&output.stderr));
    assert!(out.contains("mamba-ssm") && out.contains("causal-conv1d"), "{out}");
}

#[test]
fn plan_is_written_in_formats_of_other_tools() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("plan.toml");
    let path = file.to_str().expect("UTF-8");
    let output = plan(&["torch", "--machine", "cpu-x86_64", "--emit", "plan.toml", "-o", path]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let written = std::fs::read_to_string(&file).expect("a file");
    let plan = setup::emit::read_plan(&written).expect("a plan");
    assert_eq!(plan.target.name, "cpu-x86_64");
}

/// Writes the plan of these arguments in a format. Returns the file and its text without the comment above it.
fn written(folder: &Path, format: &str, arguments: &[&str]) -> (String, String) {
    let path = folder.join(format).to_str().expect("UTF-8").to_owned();
    let output = plan(&[arguments, &["--emit", format, "-o", &path]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let text = std::fs::read_to_string(&path).expect("a file");
    let body = text.lines().filter(|line| !line.starts_with('#')).collect::<Vec<_>>().join("\n");
    (path, body)
}

#[test]
fn r4_07_profile_round_trips() {
    let (first, second) = (tempfile::tempdir().expect("a"), tempfile::tempdir().expect("b"));
    let asked = ["flash-attn", "--machine", "h200"];
    let (file, body) = written(first.path(), "profile.yaml", &asked);
    assert!(body.contains("flash_attn_version: ") && body.contains("cuda_version: "), "{body}");
    let asked = ["--for", &file, "--machine", "h200"];
    assert_eq!(written(second.path(), "profile.yaml", &asked).1, body);
    // The version is pinned: an older torch stays older.
    let older = "torch_version: 2.8.0\ncuda_version: '12.8'\n";
    std::fs::write(&file, older).expect("writes");
    let (_, again) = written(second.path(), "profile.yaml", &asked);
    assert!(again.contains("torch_version: 2.8.0") && again.contains("12.8"), "{again}");
    std::fs::write(&file, format!("{older}triton_sel_force: true\n")).expect("writes");
    let output = plan(&asked);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("`triton_sel_force` is for testing only"));
}

#[test]
fn written_plan_is_checked() {
    let folder = tempfile::tempdir().expect("a folder");
    let asked = ["--for", "granite-a10", "--machine", "a10"];
    let (file, _) = written(folder.path(), "plan.toml", &asked);
    let (_, direct) = written(folder.path(), "pyproject.toml", &asked);
    assert_eq!(written(folder.path(), "pyproject.toml", &["--from", &file]).1, direct);
    let output = plan(&["--from", &file]);
    assert_eq!(output.status.code(), Some(0), "{}{}", text(&output.stdout), text(&output.stderr));
    assert!(text(&output.stdout).contains("plan for a10"));

    // A version that differs from the tables is a finding, and an impossible machine is a refusal.
    let written = std::fs::read_to_string(&file).expect("a file");
    let planned = setup::emit::read_plan(&written).expect("a plan");
    let torch = planned.packages.iter().find(|package| package.name == "torch").expect("torch");
    std::fs::write(&file, written.replace(&torch.version, "2.0.0")).expect("writes");
    let output = plan(&["--from", &file]);
    let out = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{out}");
    assert!(out.contains(&format!("torch 2.0.0 is {} today", torch.version)), "{out}");
    let elsewhere = written.replace("gpus = [[8, 6]]", "gpus = []");
    assert_ne!(elsewhere, written);
    std::fs::write(&file, elsewhere).expect("writes");
    let output = plan(&["--from", &file]);
    let out = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{out}");
    assert!(out.contains("these cannot all hold"), "{out}");

    let output = plan(&["--from", &file, "torch"]);
    assert_eq!(output.status.code(), Some(2), "--from takes no packages");
}

#[test]
fn plan_uses_an_installed_python() {
    let folder = tempfile::tempdir().expect("a folder");
    let json = |python: &str, uv: &str, arguments: &[&str]| -> facts::InstallPlan {
        let output = plan_with(folder.path(), python, uv, arguments);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{error}");
        serde_json::from_slice(&output.stdout).expect(&error)
    };
    assert_eq!(json("python3.11", "", &["torch", "--json"]).python, "3.11");
    std::fs::remove_dir_all(folder.path().join("bin")).expect("removes");

    // No wheels are published for Python 3.8: the plan names the version it uses instead and how to install it.
    let uv = "*find*) exit 2 ;;\n*only-downloads*) echo 'cpython-3.12.16-linux' ;;\n";
    let plan = json("python3.8", uv, &["torch", "--json"]);
    assert_eq!(plan.python, "3.12");
    let said = |fact: &facts::Fact<String>| {
        // uv's whole path: it may be in firstlight's cache.
        fact.value.contains("/uv python install 3.12` gets cpython-3.12.16-linux")
    };
    assert!(plan.warnings.iter().any(said), "{:?}", plan.warnings);

    // If uv cannot install the version either, the command fails before it locks anything.
    let uv = "*find*) exit 2 ;;\n*only-installed*) echo 'cpython-3.8.1-linux' ;;\n*compile*) echo compiled >&2; exit 1 ;;\n";
    let output = plan_with(folder.path(), "python3.8", uv, &["torch", "--lock"]);
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{error}");
    let words =
        "Python 3.12 is not on this machine, and uv cannot get it: here are cpython-3.8.1-linux";
    assert!(error.contains(words) && !error.contains("compiled"), "{error}");
}

#[test]
fn refusal_has_the_schema() {
    let output = plan(&["torch==99", "--machine", "a10", "--json"]);
    assert_eq!(output.status.code(), Some(1));
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(document["schema"], facts::SCHEMA);
    assert!(document["conflict"].is_array());
}

#[test]
fn missing_package_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let asked = ["nopkg-xyz", "--machine", "a10"];
    // The message of uv 0.13.9.
    let uv = "*compile*) echo 'error: No solution found when resolving dependencies' >&2\n\
              echo '  cause: Because nopkg-xyz was not found in the package registry and firstlight-plan depends on nopkg-xyz, we can conclude that your requirements are unsatisfiable.' >&2\n\
              exit 1 ;;\n";
    let output = plan_with(folder.path(), "python3.11", uv, &asked);
    let error = text(&output.stderr);
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(2), String::new()));
    assert!(
        error.contains("there is no package `nopkg-xyz` on https://pypi.org/simple"),
        "{error}"
    );
    // Without a network the plan reports that it cannot tell.
    let uv = "*compile*) echo 'error: Request failed' >&2; echo '  cause: Failed to fetch: `https://pypi.org/simple/nopkg-xyz/`' >&2\n\
              echo '  cause: dns error' >&2; exit 2 ;;\n";
    let output = plan_with(folder.path(), "python3.11", uv, &asked);
    let out = text(&output.stdout);
    assert_eq!(output.status.code(), Some(3), "{out}");
    let flat = out.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        flat.contains("unchecked: the tables have no package nopkg-xyz")
            && flat.contains("dns error"),
        "{out}"
    );
}

#[test]
fn gpu_is_selected_by_name_or_compute_capability() {
    let json = |arguments: &[&str]| -> facts::InstallPlan {
        let output = plan(&[&["torch", "--json"], arguments].concat());
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{arguments:?} {error}");
        serde_json::from_slice(&output.stdout).expect("a plan")
    };
    for (name, gpu) in
        [("a100", (8, 0)), ("RTX PRO 6000", (12, 0)), ("v100", (7, 0)), ("thor", (11, 0))]
    {
        assert_eq!(json(&["--machine", name]).target.gpus, [gpu], "{name}");
    }
    let any = json(&["--gpu", "8.0"]);
    assert_eq!((any.target.gpus.as_slice(), any.target.arch.as_str()), (&[(8, 0)][..], "x86_64"));
    let named = json(&["--machine", "a100"]);
    let versions = |plan: &facts::InstallPlan| -> Vec<String> {
        plan.packages.iter().map(|it| format!("{} {}", it.name, it.version)).collect()
    };
    assert_eq!(versions(&any), versions(&named), "the name changes no version");
    assert_eq!(json(&["--gpu", "9.0", "--arch", "aarch64"]).target.arch, "aarch64");
    // A driver of CUDA 12 limits the choice.
    let old = json(&["--gpu", "8.0", "--driver", "550.54.14"]);
    assert!(old.cuda.as_deref().is_some_and(|cuda| cuda.starts_with("12.")), "{:?}", old.cuda);
    for (arguments, words) in [
        (&["--gpu", "8.0", "--machine", "a100"][..], "cannot be used with"),
        (&["--arch", "aarch64"], "--compute-capability"),
        (&["--gpu", "ampere"], "expected a compute capability"),
        (&["--driver", "550.54.14"], "--driver is for a machine named"),
        (&["--gpu", "8.0", "--driver", "new"], "expected a driver version"),
    ] {
        let output = plan(arguments);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?} {error}");
        assert!(error.contains(words), "{words}: {error}");
    }
    // No torch of the tables has code for a GPU so old.
    assert_eq!(plan(&["--gpu", "3.5"]).status.code(), Some(1));
}

#[test]
fn matrix_matches_the_plan() {
    let matrix = |arguments: &[&str]| -> facts::SupportMatrix {
        let mut command = Command::new(env!("CARGO_BIN_EXE_firstlight"));
        let output =
            command.args(["plan", "--matrix", "--json"]).args(arguments).output().expect("runs");
        serde_json::from_slice(&output.stdout).expect("a matrix")
    };
    let cell = |matrix: &facts::SupportMatrix, component: &str| {
        let row = matrix.rows.iter().find(|row| row.component == component).expect(component);
        assert_eq!(row.cells.len(), 1);
        (row.cells[0].support, row.cells[0].reason.clone())
    };
    let old = matrix(&["--machine", "v100"]);
    assert_eq!(old.platforms, ["v100"]);
    let (support, reason) = cell(&old, "flash-attn");
    assert_eq!(support, facts::Support::No, "{reason}");
    assert!(reason.contains("needs compute capability 8.0"), "{reason}");
    assert_eq!(cell(&old, "PyTorch").0, facts::Support::Yes);
    let new = matrix(&["--compute-capability", "8.0"]);
    let (support, reason) = cell(&new, "flash-attn");
    assert_eq!(support, facts::Support::Yes, "{reason}");
    assert!(reason.starts_with("flash-attn 2.") && reason.contains("with torch"), "{reason}");
    assert_eq!(cell(&matrix(&["--machine", "cpu-x86_64"]), "multi-GPU").0, facts::Support::No);
}

/// Row D8.
#[test]
fn cuda_option_is_applied_or_refused() {
    for (cuda, words) in [("99", "expected a CUDA release such as 12.8"), ("12", "such as 12.8")] {
        let output = plan(&["torch", "--machine", "h100", "--cuda", cuda]);
        assert_eq!(output.status.code(), Some(2));
        assert!(text(&output.stderr).contains(words), "{}", text(&output.stderr));
    }
    let output = plan(&["torch", "--machine", "cpu-x86_64", "--cuda", "12.8"]);
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.contains("CUDA 12.8 was asked for") && error.contains("--machine"), "{error}");
    let output = plan(&["torch", "--machine", "h100", "--cuda", "13.9"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stdout).contains("CUDA 13.9 was requested"));
}

/// Row D8.
#[test]
fn reports_the_written_plan() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("plan.toml");
    let name = path.to_str().expect("UTF-8");
    let asked = ["torch", "--machine", "h100", "--emit", "plan.toml", "-o", name];
    let out = text(&plan(&asked).stdout);
    assert!(out.starts_with("wrote ") && out.contains("plan.toml: "), "{out}");
    assert!(out.contains("packages, not locked"), "{out}");
    let one = ["transformers", "--machine", "h100", "--emit", "plan.toml", "-o", name];
    let out = text(&plan(&one).stdout);
    assert!(out.contains("plan.toml: 1 package, not locked"), "{out}");
}

/// Row D8.
#[test]
fn engine_is_planned_with_its_torch_and_cuda() {
    for engine in ["sglang", "vllm"] {
        let output = plan(&[engine, "--machine", "a100", "--json"]);
        let plan: facts::InstallPlan = serde_json::from_slice(&output.stdout).expect("a plan");
        assert!(plan.cuda.is_some(), "{engine}: {plan:?}");
        let pinned = |name: &str| {
            let package = plan.packages.iter().find(|package| package.name == name);
            package
                .is_some_and(|package| package.version.starts_with(|it: char| it.is_ascii_digit()))
        };
        assert!(pinned("torch") && pinned(engine), "{engine}: {plan:?}");
    }
}

/// Row D8.
#[test]
fn no_gpu_suggests_the_machine_option() {
    if Path::new("/proc/driver/nvidia").exists() {
        return;
    }
    for (wanted, next) in [
        ("flash-attn", "flash-attn --machine a100"),
        // No machine has a plan for a release that does not exist.
        ("flash-attn>=99", "flash-attn==2.8.3 --machine a100"),
        ("torch==9.9", "torch==2."),
    ] {
        let output = plan(&[wanted]);
        let out = text(&output.stdout);
        assert_eq!(output.status.code(), Some(1), "{out}");
        let command =
            out.split("next\n  firstlight plan ").nth(1).unwrap_or_else(|| panic!("{out}"));
        assert!(command.starts_with(next), "{out}");
        let words: Vec<&str> = command.split_whitespace().collect();
        assert_eq!(plan(&words).status.code(), Some(0), "{command}");
    }
}

#[test]
fn installation_of_uv_is_announced() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().expect("a folder");
    let bin = folder.path().join("bin");
    std::fs::create_dir(&bin).expect("a folder");
    // Its pip installs a uv that only knows its version.
    let script = "#!/bin/sh\nwhile [ $# -gt 1 ] && [ \"$1\" != --target ]; do shift; done\n\
                  [ \"$1\" = --target ] || exit 1\n/bin/mkdir -p \"$2/bin\"\n\
                  printf '#!/bin/sh\\n[ \"$1\" = --version ] && echo uv 0.13.9\\n' > \"$2/bin/uv\"\n\
                  /bin/chmod +x \"$2/bin/uv\"\n";
    std::fs::write(bin.join("python3"), script).expect("writes");
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(bin.join("python3"), mode).expect("sets");
    let mut command = Command::new(env!("CARGO_BIN_EXE_firstlight"));
    command.args(["plan", "torch", "--machine", "cpu-x86_64", "--lock"]).env("PATH", &bin);
    command.env("HOME", folder.path()).env("NO_COLOR", "1");
    for variable in ["XDG_CACHE_HOME", "XDG_DATA_HOME", "UV_CACHE_DIR"] {
        command.env_remove(variable);
    }
    let cache = folder.path().join(".cache");
    let said = format!(
        "pip installs uv into {0}/firstlight/tools; uv keeps its cache in {0}/uv\n",
        cache.display()
    );
    let error = text(&command.output().expect("firstlight runs").stderr);
    assert!(error.starts_with(&said), "{error}");
    // It is installed only once.
    let error = text(&command.output().expect("firstlight runs").stderr);
    assert!(!error.contains("pip installs uv"), "{error}");
}
