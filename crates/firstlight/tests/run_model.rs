//! `firstlight synth`, `logits` and `run`: logits or text of a model folder, and an error for each invalid input.

#![allow(clippy::unwrap_used)] // Test helpers may unwrap.

#[path = "../../models/tests/logits/gguf/writer.rs"]
mod gguf;
mod support;

use safetensors::tensor::{Dtype, SafeTensors};
use std::path::Path;
use support::{expect, json, refuses};
use tempfile::tempdir;

fn logits(path: &Path) -> (Vec<usize>, Vec<f32>) {
    let bytes = std::fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let tensor = file.tensor("logits").unwrap();
    assert_eq!(tensor.dtype(), Dtype::F32);
    let values = tensor.data().as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
    (tensor.shape().to_vec(), values.collect())
}

/// Returns the logits of some tokens and the JSON report.
fn run(folder: &Path, arguments: &[&str]) -> (Vec<f32>, serde_json::Value) {
    let line =
        [&["logits", "m", "--ids", "5,1,5,300,2", "-o", "out.safetensors"], arguments].concat();
    let ran = json(folder, &line, 0);
    let (shape, values) = logits(&folder.join("out.safetensors"));
    assert_eq!(shape, [5, 512]);
    (values, ran)
}

#[test]
fn chunked_logits_are_equal_and_kernels_are_reported() {
    for (name, kernels) in [
        ("granite-moe-mini", ["attention.", "conv1d.", "linear.f32", "ssd."]),
        ("kimi-linear-mini", ["attention.", "conv1d.", "linear.f32", "kda."]),
    ] {
        let folder = tempdir().unwrap();
        let drawn = json(folder.path(), &["synth", name, "m", "--seed", "3"], 0);
        assert!(drawn["parameters"].as_u64().unwrap() > 50_000, "{drawn}");
        let (whole, ran) = run(folder.path(), &[]);
        for kernel in kernels {
            let launches = ran["launches"].as_object().unwrap();
            assert!(launches.keys().any(|name| name.starts_with(kernel)), "{kernel}: {ran}");
        }
        let (chunked, _) = run(folder.path(), &["--chunk", "2"]);
        let furthest = whole.iter().zip(&chunked).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(furthest < 1e-5, "{name}: {furthest}");
        let (rounded, _) = run(folder.path(), &["--dtype", "bf16"]);
        assert_ne!(whole, rounded, "{name}: bfloat16 rounds");
    }
}

#[test]
fn lists_shapes_and_reports_invalid_arguments() {
    let folder = tempdir().unwrap();
    let here = folder.path();
    let (listed, _) = expect(here, &["synth"], 0);
    assert!(
        listed.contains("granite-4.0-h-micro") && listed.contains("kimi-linear-48b-a3b"),
        "{listed}"
    );
    refuses(here, &["synth", "gpt-2", "m"], &["there is no model shape `gpt-2`"]);
    refuses(
        here,
        &["synth", "granite-hybrid-mini", "m", "--layers", "9"],
        &["the model has 4 layers, and 9 were asked for"],
    );
    let (said, _) = expect(here, &["synth", "granite-hybrid-mini", "m", "--layers", "2"], 0);
    assert!(said.contains("parameters of random granite-hybrid-mini in m"), "{said}");
    refuses(here, &["synth", "granite-hybrid-mini", "m"], &["m: is not empty"]);
    let on = |model: &'static str, ids: &'static str| {
        ["logits", model, "--ids", ids, "-o", "o.safetensors"]
    };
    refuses(here, &on("n", "1"), &["n/config.json"]);
    refuses(here, &on("org/n", "1"), &["the cache has no model org/n"]);
    refuses(here, &on("m", "1,512"), &["token 512 is beyond the model's vocabulary of 512"]);
    std::fs::write(here.join("m/config.json"), r#"{"model_type": "rwkv"}"#).unwrap();
    refuses(here, &on("m", "1"), &["rwkv is no model family"]);
    assert!(!here.join("o.safetensors").exists());
}

#[test]
fn generates_text_and_reports_time_and_memory() {
    for name in ["granite-moe-mini", "kimi-linear-mini"] {
        let folder = tempdir().unwrap();
        let here = folder.path();
        expect(here, &["synth", name, "m"], 0);
        let line = ["run", "m", "-p", "hello", "-n", "9", "--temperature", "1", "--verify"];
        let ran = json(here, &line, 0);
        let answer = &ran["answers"][0];
        assert_eq!(answer["prompt_tokens"], 5, "a token a byte: {ran}");
        assert_eq!(
            (answer["tokens"].as_array().unwrap().len(), &answer["ended"]),
            (9, &"limit".into())
        );
        assert_eq!(ran["agree"], true, "{ran}");
        for key in [
            "first_step_ms",
            "prompt_read_again_ms",
            "load_bytes_per_second",
            "tokens_per_second",
            "percent_of_bandwidth_limit",
            "read_bytes_per_second",
        ] {
            assert!(ran[key].as_f64().unwrap() > 0.0, "{key}: {ran}");
        }
        let launches = ran["launches"].as_object().unwrap();
        assert!(launches.keys().any(|kernel| kernel.starts_with("linear.")), "{ran}");
        let (text, told) = expect(here, &line, 0);
        assert_eq!(text, format!("{}\n", answer["text"].as_str().unwrap()), "the text alone");
        for words in
            ["5 token ids read, 9 added (limit)", "decoding and prefill agree", "attention."]
        {
            assert!(told.contains(words), "no `{words}` in {told}");
        }
        // The prompt is prefilled a second time only with --verify.
        let once = json(here, &line[..line.len() - 1], 0);
        assert_eq!(once["answers"], ran["answers"]);
        assert!(once["read_bytes_per_second"].is_null(), "only measured with --verify: {once}");
        assert!(once["agree"].is_null() && once["prompt_read_again_ms"].is_null(), "{once}");
        let launched = |ran: &serde_json::Value| {
            let counts = ran["launches"].as_object().unwrap().values();
            counts.map(|count| count.as_u64().unwrap()).sum::<u64>()
        };
        assert!(launched(&once) < launched(&ran), "{once}");
        // Each answer of a batch equals the answer of its prompt alone.
        let both = json(here, &[&line[..], &["-p", "x"]].concat(), 0);
        assert_eq!(both["answers"][0], *answer);
        assert_eq!(both["answers"][1]["prompt_tokens"], 1);
        assert!(both["percent_of_bandwidth_limit"].is_null());
        // A stop id ends the answer and is not part of it.
        let third = answer["tokens"][2].to_string();
        let stopped = json(here, &[&line[..], &["--stop-ids", &third]].concat(), 0);
        assert_eq!(stopped["answers"][0]["ended"], "stop id");
        assert!(stopped["answers"][0]["tokens"].as_array().unwrap().len() <= 2);
        // A single token has no decode step to measure or check.
        let one = json(here, &["run", "m", "--ids", "7", "-n", "1", "--dtype", "f32"], 0);
        assert!(
            one["tokens_per_second"].is_null() && one["decode_and_prefill_difference"].is_null()
        );
    }
}

#[test]
fn applies_chat_template_and_reports_invalid_arguments() {
    let folder = tempdir().unwrap();
    let here = folder.path();
    expect(here, &["synth", "granite-rope-mini", "m"], 0);
    let hints = |arguments: &[&str], sentence: &str, hint: &str| {
        refuses(here, arguments, &[sentence]);
        let (_, err) = expect(here, arguments, 2);
        assert!(err.lines().nth(1).unwrap().contains(hint), "no `{hint}` in {err}");
    };
    std::fs::remove_file(here.join("m/chat_template.jinja")).unwrap();
    hints(&["run", "m", "--chat", "hi"], "there is no chat template", "use -p instead of --chat");
    let nan = ["run", "m", "-p", "x", "--temperature", "nan"];
    hints(&nan, "the temperature is NaN, expected 0 or more", "0.7 is a usual value");
    // Sampling options are checked before the model is opened.
    hints(&["run", "absent", "-p", "x", "--top-p=2"], "top-p is 2", "0.9 is a usual value");
    hints(&["run", "absent", "-p", "x"], "absent/config.json", "check the path");
    hints(&["run", "m"], "there is no prompt", "-p TEXT");
    hints(&["run", "m", "-p", ""], "the prompt has no tokens", "give some text with -p");
    hints(
        &["logits", "m", "--ids", "1", "-o", "absent/o"],
        "there is no folder absent",
        "create the folder",
    );
    let weights = "m/model.safetensors";
    let own = ["logits", "m", "--ids", "1", "-o", weights];
    hints(&own, "would overwrite the input m/model.safetensors", "name another file");
    assert!(std::fs::metadata(here.join(weights)).unwrap().len() > 100_000);
    let template = "<{{ messages[0].content }}>{% if add_generation_prompt %}:{% endif %}";
    std::fs::write(here.join("m/chat_template.jinja"), template).unwrap();
    let ran = json(here, &["run", "m", "--chat", "hi", "-n", "2"], 0);
    assert_eq!(ran["answers"][0]["prompt_tokens"], "<hi>:".len());
    let template = "{{ tools | tojson }}{% for m in messages %}<{{ m.content }}>{% endfor %}";
    std::fs::write(here.join("m/chat_template.jinja"), template).unwrap();
    let tools = r#"[{"type": "function", "function": {"name": "b", "a": 1.0}}]"#;
    let given = |text: &str| std::fs::write(here.join("tools.json"), text).unwrap();
    given(tools);
    let with =
        ["run", "m", "--chat", "hi", "--system", "brief", "--tools", "tools.json", "-n", "1"];
    let ran = json(here, &with, 0);
    assert_eq!(ran["answers"][0]["prompt_tokens"], tools.len() + "<brief><hi>".len());
    for (text, words) in [
        ("{", "tools.json is not JSON"),
        ("{}", "tools.json has no list of tools"),
        ("[{}, 3]", "tools.json: tool 2 is not an object"),
    ] {
        given(text);
        hints(&with, words, "expected a list: [{");
    }
    std::fs::remove_file(here.join("tools.json")).unwrap();
    hints(&with, "tools.json: No such file", "check the path");
    refuses(here, &["run", "m", "-p", "x", "-n", "4096"], &["are 4097", "context is 4096"]);
    refuses(here, &["run", "m", "-p", "x", "--top-p", "0"], &["top-p is 0"]);
    refuses(here, &["run", "m", "-p", "", "-n", "1"], &["the prompt has no tokens"]);
    let ranks = std::fs::read_to_string(here.join("m/tiktoken.model")).unwrap() + "aGU= 256\n";
    std::fs::write(here.join("m/tiktoken.model"), ranks).unwrap();
    refuses(here, &["run", "m", "-p", "x"], &["ids up to 512", "a vocabulary of 512"]);
    std::fs::remove_file(here.join("m/tiktoken.model")).unwrap();
    hints(&["run", "m", "-p", "x"], "m/tokenizer.json", "give token ids with --ids");
    json(here, &["run", "m", "--ids", "5,6", "-n", "2"], 0);
}

#[test]
fn fit_reports_whether_a_model_fits() {
    let folder = tempdir().unwrap();
    let here = folder.path();
    let drawn = json(here, &["synth", "granite-moe-mini", "m"], 0);
    let fits = json(here, &["fit", "m", "--context", "2048", "--batch", "4"], 0);
    let memory = &fits["model"]["memory"];
    // The parameters are counted exactly, from the file headers.
    assert_eq!(memory["parameters"]["value"], drawn["parameters"]);
    assert_eq!((&memory["context_tokens"], &memory["sequences"]), (&2048.into(), &4.into()));
    assert_eq!(memory["fits"], true, "{fits}");
    // The report also has the memory of firstlight's engine.
    let engine = &fits["engine"];
    let peak = ["weights", "states", "caches"]
        .map(|part| engine[format!("{part}_bytes")].as_u64().unwrap())
        .iter()
        .sum::<u64>();
    assert!(engine["peak_bytes"].as_u64().unwrap() > peak, "{fits}");
    let (said, _) = expect(here, &["fit", "m", "--context", "2048"], 0);
    assert!(said.contains("for firstlight run on the processor"), "{said}");
    assert_eq!(said.matches("fits").count(), 1, "one verdict: {said}");
    // A billion sequences fit no machine.
    let (said, _) = expect(here, &["fit", "m", "--batch", "1000000000"], 1);
    for words in ["does not fit, ", "model-memory"] {
        assert!(said.contains(words), "no `{words}` in {said}");
    }
    // A shape without files is counted in the dtype of `synth`, or quantized as by `quantize`.
    let shape = json(here, &["fit", "granite-moe-mini"], 0);
    assert_eq!(shape["model"]["memory"]["parameters"]["value"], drawn["parameters"]);
    expect(here, &["quantize", "m", "narrow", "--to", "int4"], 0);
    let bytes = |model: &str, more: &[&str]| {
        let fits = json(here, &[&["fit", model], more].concat(), 0);
        fits["model"]["memory"]["weights_bytes"]["value"].as_u64().unwrap()
    };
    let narrow = bytes("granite-moe-mini", &["--weights", "int4"]);
    assert!(narrow < bytes("granite-moe-mini", &[]));
    assert_eq!(narrow, bytes("m", &["--weights", "int4"]));
    // Files also store the two integers of each packed tensor's shape.
    let shapes = bytes("narrow", &[]) - narrow;
    assert!(shapes.is_multiple_of(2 * 8) && shapes < narrow / 100, "{shapes}");
    refuses(here, &["fit", "n"], &["n does not exist"]);
    // A context longer than the model's is refused with the limit, not truncated.
    let far = ["fit", "m", "--context", "100000000000"];
    refuses(here, &far, &["--context 100000000000", "longest context is 4096"]);
    let config = here.join("m/config.json");
    let far = ["doctor", "--model", config.to_str().unwrap(), "--context", "5000"];
    refuses(here, &far, &["--context 5000", "longest context is 4096"]);
}

#[test]
fn fit_rejects_incomplete_weights() {
    let folder = tempdir().unwrap();
    let here = folder.path();
    expect(here, &["synth", "granite-moe-mini", "m"], 0);
    let weights = here.join("m/model.safetensors");
    let whole = std::fs::metadata(&weights).unwrap().len();
    let cut = |bytes: u64| {
        std::fs::OpenOptions::new().write(true).open(&weights).unwrap().set_len(bytes).unwrap();
    };
    cut(whole - 1);
    let (wanted, there) = (format!("expected {whole} bytes"), format!("there are {}", whole - 1));
    let file = "m/model.safetensors is truncated";
    refuses(here, &["fit", "m"], &[file, &wanted, &there]);
    cut(0);
    refuses(here, &["fit", "m"], &[file, "expected 8 bytes, there are 0"]);
    std::fs::remove_file(&weights).unwrap();
    refuses(here, &["fit", "m"], &["m/model.safetensors is missing", "the config implies"]);
    let index =
        r#"{"metadata": {"total_size": 99}, "weight_map": {"a": "model-1-of-2.safetensors"}}"#;
    std::fs::write(here.join("m/model.safetensors.index.json"), index).unwrap();
    refuses(here, &["fit", "m"], &["m/model-1-of-2.safetensors is missing", "expected 99 bytes"]);
    // A config.json without weights is enough.
    json(here, &["fit", "m/config.json"], 0);
    // An unsupported model is counted too, and the reason is reported.
    let config = std::fs::read_to_string(here.join("m/config.json")).unwrap();
    std::fs::write(here.join("m/config.json"), config.replace("\"silu\"", "\"gelu\"")).unwrap();
    let (said, _) = expect(here, &["fit", "m/config.json"], 0);
    let said = support::unbroken(&said);
    for words in ["does not run it: ", "`hidden_act` is \"gelu\", expected silu", "needs "] {
        assert!(said.contains(words), "no `{words}` in {said}");
    }
}

/// `synth` in a shell that limits each file to `blocks` blocks of 512 bytes.
#[cfg(unix)]
fn synth_within(folder: &Path, blocks: u32, model: &str) -> std::process::Output {
    let firstlight = env!("CARGO_BIN_EXE_firstlight");
    // The program inherits the ignored SIGXFSZ, so its write fails as on a full disk.
    let script = format!(
        "trap '' XFSZ; ulimit -f {blocks}; exec {firstlight} synth granite-hybrid-mini {model}"
    );
    std::process::Command::new("sh").args(["-c", &script]).current_dir(folder).output().unwrap()
}

#[test]
#[cfg(unix)]
fn failed_synth_leaves_no_file() {
    let folder = tempdir().unwrap();
    let here = folder.path();
    let left = || std::fs::read_dir(here).unwrap().count();
    let failed = synth_within(here, 100, "deep/er/m");
    let said = String::from_utf8_lossy(&failed.stderr).into_owned();
    assert_eq!(failed.status.code(), Some(2), "{said}");
    assert!(said.contains("model.safetensors: File too large"), "{said}");
    assert!(said.contains("free some space") && !said.contains("permissions"), "{said}");
    assert_eq!(left(), 0, "the created folders are removed too");
    // An existing folder stays, empty.
    std::fs::create_dir(here.join("m")).unwrap();
    assert_eq!(synth_within(here, 100, "m").status.code(), Some(2));
    assert_eq!(std::fs::read_dir(here.join("m")).unwrap().count(), 0);
    // A model larger than any disk is refused with the numbers before anything is written.
    let config = models::shape("kimi-linear-48b-a3b").unwrap();
    let config = config.with("vocab_size", serde_json::json!(16_000_000));
    let config = config.with("hidden_size", serde_json::json!(65_536));
    let wanted = models::synth(config, &here.join("n"), &models::SynthOptions::default());
    let said = wanted.unwrap_err().to_string();
    assert!(said.contains("free, ") && said.contains("are to be written"), "{said}");
    assert!(!here.join("n").exists());
}

#[test]
#[cfg(target_os = "linux")]
fn interrupted_synth_leaves_no_file() {
    let folder = tempdir().unwrap();
    let here = folder.path();
    let mut synth = support::command(here, &["synth", "granite-4.0-h-micro", "m", "--layers", "6"]);
    let synth = synth.stderr(std::process::Stdio::piped()).spawn().unwrap();
    let weights = here.join("m/model.part");
    let begun = || std::fs::metadata(&weights).is_ok_and(|file| file.len() > 4 << 20);
    let start = std::time::Instant::now();
    while !begun() && start.elapsed().as_secs() < 60 {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let stop = std::process::Command::new("kill").args(["-INT", &synth.id().to_string()]).status();
    assert!(stop.unwrap().success());
    let ended = synth.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(2), "{said}");
    assert!(
        said.contains("stopped at m/model.safetensors, and what was made is removed"),
        "{said}"
    );
    assert_eq!(std::fs::read_dir(here).unwrap().count(), 0);
}

#[test]
fn gguf_file_works_like_a_model_folder() {
    use gguf::Kind;
    let folder = tempdir().unwrap();
    let here = folder.path();
    json(here, &["synth", "granite-hybrid-mini", "m"], 0);
    let (whole, _) = run(here, &[]);
    let mut smallest = u64::MAX;
    for kind in [Kind::F32].into_iter().chain(Kind::BLOCKS) {
        gguf::write(&here.join("m"), &here.join("m.gguf"), |_| kind);
        json(here, &["logits", "m.gguf", "--ids", "5,1,5,300,2", "-o", "out.safetensors"], 0);
        let (_, values) = logits(&here.join("out.safetensors"));
        let furthest = whole.iter().zip(&values).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        // Rows of 64 and 96 columns are not whole K-quant blocks, so those tensors stay unquantized and keep their logits.
        let is_quantized = (2..=64).contains(&kind.sizes().1);
        assert_eq!(furthest > 1e-5, is_quantized, "{kind:?}: {furthest}");
        let fits = json(here, &["fit", "m.gguf", "--context", "100"], 0);
        let weights = fits["engine"]["weights_bytes"].as_u64();
        let weights = weights.unwrap_or_else(|| panic!("{kind:?}: {}", fits["engine_refuses"]));
        smallest = smallest.min(weights);
        assert!(kind == Kind::F32 || weights <= fits_of_floats(here), "{kind:?}: {weights}");
        let source =
            fits["model"]["memory"]["weights_bytes"]["source"].as_str().unwrap().to_owned();
        assert!(source.contains("the header of m.gguf"), "{source}");
    }
    assert!(smallest < fits_of_floats(here), "no weights stayed quantized");
    let ran = json(here, &["run", "m.gguf", "--ids", "1,2,3", "-n", "4", "--verify"], 0);
    assert_eq!(ran["agree"], true, "{ran}");
    refuses(here, &["run", "m.gguf", "-p", "a text"], &["m.gguf", "has no vocabulary"]);
    refuses(here, &["quantize", "m.gguf", "out", "--to", "fp8"], &["is a GGUF file"]);
    std::fs::write(here.join("m.gguf"), "GGUF").unwrap();
    refuses(here, &["run", "m.gguf", "--ids", "1"], &["m.gguf is truncated"]);
}

/// Weight bytes of the engine for the model folder.
fn fits_of_floats(folder: &Path) -> u64 {
    let fits = json(folder, &["fit", "m", "--context", "100"], 0);
    fits["engine"]["weights_bytes"].as_u64().unwrap()
}
