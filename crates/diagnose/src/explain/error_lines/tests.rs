use super::{Kind, Link, chain, read, root};
use crate::text::Pasted;

fn root_of(text: &str) -> Option<(String, String)> {
    let errors = read(&Pasted::new(text));
    root(&errors).map(|error| (error.class.clone(), error.message.clone()))
}

#[test]
fn root_of_a_worker_log_is_the_first_exception_not_the_parents() {
    let text = "\
(EngineCore_0 pid=27) ERROR 05-23 09:31:47 [core.py:396] EngineCore failed to start.
(EngineCore_0 pid=27) ERROR 05-23 09:31:47 [core.py:396] Traceback (most recent call last):
(EngineCore_0 pid=27) ERROR 05-23 09:31:47 [core.py:396]   File \"/v/lib/python3.12/site-packages/vllm/v1/engine/core.py\", line 387, in run_engine_core
(EngineCore_0 pid=27) ERROR 05-23 09:31:47 [core.py:396]     engine_core = EngineCoreProc(*args, **kwargs)
(EngineCore_0 pid=27) ERROR 05-23 09:31:47 [core.py:396] KeyError: 'layers.13.mlp.gate_up_proj.weight'
Traceback (most recent call last):
  File \"/v/bin/vllm\", line 8, in <module>
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}";
    let errors = read(&Pasted::new(text));
    let kinds: Vec<Kind> = errors.iter().map(|error| error.kind).collect();
    assert_eq!(kinds, [Kind::Wrapper, Kind::Exception, Kind::Wrapper]);
    let root = root(&errors).unwrap();
    assert_eq!(root.class, "KeyError");
    assert_eq!(root.frames[0].package(), Some("vllm"));
    assert_eq!(root.frames[0].line, "387");
}

#[test]
fn root_of_a_chain_is_its_cause_or_last_exception() {
    let text = |link: &str| {
        format!(
            "Traceback (most recent call last):\n  File \"/a.py\", line 1, in f\nKeyError: 'qwen9'\n\n{link}\n\n\
                 Traceback (most recent call last):\n  File \"/b.py\", line 2, in g\nValueError: no such model"
        )
    };
    let during = "During handling of the above exception, another exception occurred:";
    let direct = "The above exception was the direct cause of the following exception:";
    assert_eq!(root_of(&text(during)).unwrap().0, "ValueError");
    assert_eq!(root_of(&text(direct)).unwrap().0, "KeyError");
    let errors = read(&Pasted::new(&text(during)));
    assert_eq!(errors[1].link, Link::Context);
    assert_eq!(chain(&errors, root(&errors).unwrap()).len(), 2);
}

#[test]
fn root_of_a_build_is_the_compilers_error() {
    let text = "\
FAILED: CMakeFiles/ggml.dir/fattn.cu.o
/usr/local/cuda/bin/nvcc -c fattn.cu
/src/ggml/fattn.cu(12): error: identifier \"__shfl_xor_sync2\" is undefined
1 error detected in the compilation of \"fattn.cu\".
ninja: build stopped: subcommand failed.
Traceback (most recent call last):
  File \"/v/lib/python3.12/site-packages/torch/utils/cpp_extension.py\", line 2100, in _run_ninja_build
subprocess.CalledProcessError: Command '['ninja', '-v']' returned non-zero exit status 1.
RuntimeError: Error compiling objects for extension";
    let (class, message) = root_of(text).unwrap();
    assert!(class.is_empty() && message.contains("identifier"), "{message}");
}

#[test]
fn frames_of_notebooks_are_read() {
    let text = "\
TypeError                                 Traceback (most recent call last)
File ~/.local/lib/python3.8/site-packages/transformers/modeling_utils.py:2681, in PreTrainedModel.from_pretrained(cls)
   2678     keep_in_fp32_modules = []
-> 2681     from .utils.bitsandbytes import get_keys_to_not_convert
[/usr/local/lib/python3.11/dist-packages/vllm/utils.py](https://localhost:8080/#) in inner(*args, **kwargs)
TypeError: 'NoneType' object is not subscriptable";
    let errors = read(&Pasted::new(text));
    let packages: Vec<_> = errors[0].frames.iter().filter_map(|frame| frame.package()).collect();
    assert_eq!(packages, ["transformers", "vllm"]);
    assert_eq!(errors.len(), 1);
}

#[test]
fn source_lines_and_notices_are_not_errors() {
    let text = "\
UserWarning: Dense is deprecated
INFO 05-23 09:31:47 [loader.py:1] Loading weights took 3.1 seconds
    raise ValueError(
Options: --error-limit 3";
    assert!(read(&Pasted::new(text)).is_empty(), "{:?}", read(&Pasted::new(text)));
}

#[test]
fn a_message_of_several_lines_belongs_to_its_error() {
    let text = "ValueError: The checkpoint is not usable\nreason: sizes differ\nINFO done";
    let errors = read(&Pasted::new(text));
    assert_eq!(errors.len(), 1);
    let squeezed: String = text.chars().filter(|c| !c.is_whitespace()).collect();
    assert!(errors[0].span.1 > squeezed.find("sizes").unwrap());
}
