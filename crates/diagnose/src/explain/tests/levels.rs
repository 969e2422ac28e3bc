//! The certainty of answers: what they state, confirm and leave open.

use super::*;

/// The first answer, its certainty, and the number of its open causes.
fn leading(text: &str) -> (String, Certainty, usize) {
    let found = explain_text(text, &machines::x86(), &[], &[]);
    match found.leader() {
        Some(Leader::Rule(found)) => {
            (found.rule.id.to_owned(), found.certainty(), found.causes.len())
        }
        Some(Leader::Entity(entity)) => {
            (entity.name.clone(), entity.certainty(), entity.causes.len())
        }
        None => (String::new(), Certainty::Possible, 0),
    }
}

#[test]
fn unknown_exception_is_stated_with_its_package_and_open_causes() {
    let text = "\
Traceback (most recent call last):
  File \"/app/serve.py\", line 9, in <module>
    llm = LLM(MODEL)
  File \"/v/lib/python3.12/site-packages/vllm/entrypoints/llm.py\", line 247, in __init__
    self.llm_engine = LLMEngine.from_engine_args(
  File \"/v/lib/python3.12/site-packages/transformers/tokenization_utils_base.py\", line 1099, in __getattr__
    raise AttributeError(key)
AttributeError: frobnicate";
    let found = explain_text(text, &machines::x86(), &[], &[]);
    let Some(Leader::Entity(entity)) = found.leader() else { panic!("{:?}", found.leader()) };
    assert!(entity.meaning.contains("transformers raised it"), "{}", entity.meaning);
    assert!(entity.meaning.contains("called from vllm"), "{}", entity.meaning);
    assert_eq!(entity.packages, ["transformers", "vllm"]);
    assert_eq!(entity.certainty(), Certainty::Possible);
    let first = &entity.causes[0];
    assert!(first.cause.contains("vllm and transformers"), "{first:?}");
    assert!(
        first.check.iter().any(|line| line.contains("pip show vllm transformers")),
        "{first:?}"
    );
    assert!(entity.fix.is_empty(), "no remedy holds under every cause: {:?}", entity.fix);
}

#[test]
fn exception_of_the_users_own_code_is_not_explained() {
    let text = "\
Traceback (most recent call last):
  File \"/app/train.py\", line 9, in <module>
    main(args.learning_rate)
AttributeError: 'Namespace' object has no attribute 'learning_rate'";
    let found = explain_text(text, &machines::x86(), &[], &[]);
    assert!(!found.answers(), "{:?}", found.leader());
}

#[test]
fn remote_code_of_a_model_is_the_first_cause() {
    let text = "\
  File \"/home/user/.cache/huggingface/modules/transformers_modules/abc/modeling_x.py\", line 12, in forward
    past = past_key_values.frobnicate(1)
AttributeError: 'Cache' object has no attribute 'frobnicate'";
    let found = explain_text(text, &machines::x86(), &[], &[]);
    let Some(Leader::Entity(entity)) = found.leader() else { panic!("{:?}", found.leader()) };
    assert!(entity.causes[0].cause.contains("trust_remote_code"), "{:#?}", entity.causes);
}

#[test]
fn later_known_error_of_a_parent_does_not_hide_an_unknown_root() {
    let text = "\
Traceback (most recent call last):
  File \"/v/lib/python3.12/site-packages/sglang/srt/managers/scheduler.py\", line 2733, in run_scheduler_process
AssertionError: frobnication is off

Received sigquit from a child process. It usually means the child failed.
requests.exceptions.ConnectionError: HTTPSConnectionPool(host='x.example', port=443): Max retries exceeded
";
    let (name, certainty, _) = leading(text);
    assert!(name.starts_with("AssertionError"), "{name}");
    assert_eq!(certainty, Certainty::Possible);
}

#[test]
fn known_error_at_the_root_leads_over_a_notice_before_and_an_error_after() {
    let text = "\
W0912 torch/_dynamo/convert_frame.py:844] torch._dynamo hit config.recompile_limit (8)
Traceback (most recent call last):
  File \"/v/lib/python3.12/site-packages/torch/nn/modules/linear.py\", line 125, in forward
RuntimeError: mat1 and mat2 shapes cannot be multiplied (77x2048 and 768x320)
torch.distributed.elastic.multiprocessing.errors.ChildFailedError: train.py FAILED";
    assert_eq!(leading(text).0, "torch: sizes of a product differ");
}

#[test]
fn signals_are_explained_by_number_name_and_words() {
    for (text, name) in [
        ("exits with return code = -9", "SIGKILL"),
        (
            "[ERROR] [launch.py:434:sigkill_handler] ['python3', 'main.py'] exits with return code = -7",
            "SIGBUS",
        ),
        ("failed (exitcode: -11) local_rank: 0 (pid: 3242)", "SIGSEGV"),
        ("container exited with code 137", "SIGKILL"),
        ("Segmentation fault (core dumped)", "SIGSEGV"),
        ("Signal 9 (SIGKILL) received by PID 8321", "SIGKILL"),
        (
            "subprocess.CalledProcessError: Command 'python' died with <Signals.SIGSEGV: 11>.",
            "SIGSEGV",
        ),
    ] {
        for (decoration, pasted) in decorated(text) {
            let found = explain_text(&pasted, &machines::x86(), &[], &[]);
            let named = found.entities.iter().any(|entity| entity.name.starts_with(name));
            assert!(named, "{decoration}: {text}: {:?}", found.entities);
        }
    }
    assert!(!explain_text("exited with code 1", &machines::x86(), &[], &[]).answers());
}

/// A common remedy for several open causes would be a guess.
#[test]
fn open_causes_each_have_a_check_and_share_no_remedy() {
    for message in knowledge::messages::messages() {
        for words in &message.texts {
            let found = explain_text(words.sample(), &machines::x86(), &[], &[]);
            for entity in
                found.entities.iter().filter(|entity| entity.certainty() == Certainty::Possible)
            {
                assert!(entity.causes.len() > 1, "{}", entity.name);
                for cause in &entity.causes {
                    let decides = !cause.check.is_empty() || !cause.fix.is_empty();
                    assert!(decides, "{}: {cause:?}", entity.name);
                }
            }
        }
    }
}

#[test]
fn rules_with_the_same_words_are_alternatives_until_files_decide() {
    let text = "RuntimeError: No CUDA GPUs are available";
    let found = explain_text(text, &Machine::unknown(), &[], &[]);
    assert!(found.matches.len() > 1);
    let open = found.matches.iter().filter(|found| found.confirmed_here.is_none());
    for found in open {
        assert_eq!(found.certainty(), Certainty::Possible, "{}", found.rule.id);
    }
    // A GPU without a driver decides.
    let found = explain_text(text, &machines::on_bus(machines::x86(), None), &[], &[]);
    let Some(Leader::Rule(first)) = found.leader() else { panic!("{:?}", found.leader()) };
    assert_eq!((first.rule.id, first.certainty()), ("no-driver", Certainty::Confirmed));
}

#[test]
fn only_files_confirm_a_cause() {
    let open = [Cause::new("Another cause.")];
    for (confirmed_here, causes, expect) in [
        (Some(true), &[][..], Certainty::Confirmed),
        (None, &[], Certainty::Likely),
        (Some(false), &[], Certainty::Possible),
        (None, &open, Certainty::Possible),
    ] {
        assert_eq!(Certainty::of(confirmed_here, causes), expect, "{confirmed_here:?}");
    }
}

#[test]
fn a_module_that_a_warning_names_does_not_outrank_the_exception() {
    let warning = "/v/torch/_subclasses/functional_tensor.py:275: UserWarning: Failed to initialize NumPy: No module named 'numpy' \
                   (Triggered internally at /pytorch/torch/csrc/utils/tensor_numpy.cpp:84.)\n";
    let error = "  File \"/v/lib/python3.12/site-packages/vllm/engine.py\", line 247, in f\nAttributeError: frobnicate";
    assert_eq!(leading(&format!("{warning}{error}")).0, "AttributeError: frobnicate");
    // Without another error it is the answer.
    assert!(leading(warning).0.contains("numpy"));
    // A rule knows its message wherever it is printed.
    let driver = "UserWarning: CUDA initialization: The NVIDIA driver on your system is too old (found version 11040).\n";
    assert_eq!(leading(&format!("{driver}{error}")).0, "driver-too-old");
}

#[test]
fn exceptions_of_setup_code_have_the_causes_of_builds() {
    for (frame, error, package) in [
        (
            "File \"<string>\", line 504, in get_vllm_version",
            "RuntimeError: Unknown runtime environment",
            "a package",
        ),
        (
            "File \"/tmp/pip-install-x1/mamba-ssm_0123456789abcdef0123/setup.py\", line 173, in <module>",
            "TypeError: expected string or bytes-like object, got 'NoneType'",
            "mamba-ssm",
        ),
    ] {
        let found = explain_text(&format!("  {frame}\n{error}"), &machines::x86(), &[], &[]);
        let Some(Leader::Entity(entity)) = found.leader() else { panic!("{:?}", found.leader()) };
        let begins = format!("The setup code of {package} raised");
        assert!(entity.meaning.starts_with(&begins), "{}", entity.meaning);
        assert!(entity.causes.iter().any(|it| it.fix.concat().contains("--no-build-isolation")));
        assert!(entity.causes.iter().any(|it| it.check.concat().contains("CUDA_HOME")));
    }
    // A few lines from a command line.
    let found = explain_text(
        "  File \"<string>\", line 1, in <module>\nRuntimeError: x",
        &machines::x86(),
        &[],
        &[],
    );
    assert!(!found.answers(), "{:?}", found.leader());
}

#[test]
fn failed_installation_leads_only_for_its_own_package() {
    let first = |package: &str| {
        let text = format!(
            "Collecting {package}\n 70.3/173.2 MB eta 0:00:09ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device\n\
             Traceback (most recent call last):\n  File \"a.py\", line 1, in <module>\n    import torch\n\
             ModuleNotFoundError: No module named 'torch'\n"
        );
        leading(&text).0
    };
    assert!(first("torch==2.0.1").contains("ENOSPC"));
    assert!(!first("torchvision==0.15.2").contains("ENOSPC"));
}
