//! Classifies out-of-memory errors by the memory that ran out (row R1-05).

/// The memory that an error reports as exhausted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutOfMemory {
    /// The memory of a CUDA GPU.
    Cuda,
    /// The memory of an Apple GPU.
    Mps,
    /// The memory of the host.
    Cpu,
    /// cuDNN refuses a shape or layout. Often the workspace memory is missing, but the error has other causes too.
    Cudnn,
}

impl OutOfMemory {
    /// The name in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cuda => "cuda",
            Self::Mps => "mps",
            Self::Cpu => "cpu",
            Self::Cudnn => "cudnn",
        }
    }

    /// Whether the message has causes other than memory.
    pub fn may_be_false_alarm(self) -> bool {
        self == Self::Cudnn
    }
}

/// RuntimeError and the classes that torch derives from it, by the last part of their names.
const RUNTIME_ERRORS: [&str; 4] =
    ["RuntimeError", "OutOfMemoryError", "AcceleratorError", "TorchRuntimeError"];

/// Classifies an exception by its class and message; `None` if it is not about memory.
///
/// Only a RuntimeError counts (torch's OutOfMemoryError is one): a ValueError that quotes the message is another error.
pub fn out_of_memory(class: &str, message: &str) -> Option<OutOfMemory> {
    let class = class.rsplit('.').next().unwrap_or(class).trim();
    if !RUNTIME_ERRORS.contains(&class) {
        return None;
    }
    let lower = message.to_ascii_lowercase();
    let mps = || lower.split(|c: char| !c.is_ascii_alphanumeric()).any(|word| word == "mps");
    let exhausted = lower.contains("out of memory");
    if lower.contains("cuda") && exhausted {
        return Some(OutOfMemory::Cuda);
    }
    if (exhausted || lower.contains("failed to allocate")) && mps() {
        return Some(OutOfMemory::Mps);
    }
    if message.contains("DefaultCPUAllocator: can't allocate memory") {
        return Some(OutOfMemory::Cpu);
    }
    let cudnn = message.contains("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED.");
    cudnn.then_some(OutOfMemory::Cudnn)
}

/// The first out-of-memory error of a traceback or log in which white space is single spaces.
pub(crate) fn first_in(text: &str) -> Option<OutOfMemory> {
    let classes = RUNTIME_ERRORS.iter().flat_map(|class| {
        text.match_indices(class).map(move |(at, _)| (at, *class, &text[at + class.len()..]))
    });
    let kinds = classes.filter_map(|(at, class, rest)| {
        // A message ends where the next exception begins; 1,000 characters hold torch's longest message.
        let message = rest.strip_prefix(':')?;
        let longest = message.char_indices().nth(1000).map_or(message.len(), |(end, _)| end);
        let message = &message[..longest];
        let message = &message[..message.find("Error:").unwrap_or(message.len())];
        Some((at, out_of_memory(class, message)?))
    });
    kinds.min_by_key(|(at, _)| *at).map(|(_, kind)| kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CUDA: &str =
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 21.99 GiB";

    #[test]
    fn classifies_the_messages_of_row_r1_05() {
        let check = |class: &str, message: &str, expect| {
            assert_eq!(out_of_memory(class, message), expect, "{class}: {message}");
        };
        check("RuntimeError", CUDA, Some(OutOfMemory::Cuda));
        check("torch.OutOfMemoryError", CUDA, Some(OutOfMemory::Cuda));
        check("torch.cuda.OutOfMemoryError", CUDA, Some(OutOfMemory::Cuda));
        check("RuntimeError", "cuda error: OUT OF MEMORY", Some(OutOfMemory::Cuda));
        let mps =
            "MPS backend out of memory (MPS allocated: 18.11 GB, other allocations: 384.00 KB)";
        check("RuntimeError", mps, Some(OutOfMemory::Mps));
        check("RuntimeError", "MPS: failed to allocate 4 GB", Some(OutOfMemory::Mps));
        let cpu = "[enforce fail at alloc_cpu.cpp:114] data. DefaultCPUAllocator: can't allocate memory: you tried to \
                   allocate 68719476736 bytes. Error code 12 (Cannot allocate memory)";
        check("RuntimeError", cpu, Some(OutOfMemory::Cpu));
        let cudnn = "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may appear if you passed in a \
                     non-contiguous input.";
        check("RuntimeError", cudnn, Some(OutOfMemory::Cudnn));
        assert!(OutOfMemory::Cudnn.may_be_false_alarm() && !OutOfMemory::Cuda.may_be_false_alarm());
    }

    #[test]
    fn other_errors_are_not_out_of_memory() {
        for (class, message) in [
            ("ValueError", CUDA),
            ("MemoryError", "out of memory"),
            ("RuntimeErrors", CUDA),
            ("", CUDA),
            ("RuntimeError", "out of memory"),
            ("RuntimeError", "CUDA error: device-side assert triggered"),
            (
                "RuntimeError",
                "CUDA error: no kernel image is available for execution on the device",
            ),
            ("RuntimeError", "failed to allocate temps"),
            ("RuntimeError", "cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
            ("RuntimeError", "DefaultCPUAllocator: not enough memory: you tried to allocate"),
            ("RuntimeError", "MPS backend is not available"),
        ] {
            assert_eq!(out_of_memory(class, message), None, "{class}: {message}");
        }
    }

    #[test]
    fn the_first_error_counts_and_a_quotation_does_not() {
        let check = |text: &str, expect| assert_eq!(first_in(text), expect, "{text}");
        check(&format!("Traceback ... torch.OutOfMemoryError: {CUDA}"), Some(OutOfMemory::Cuda));
        check(&format!("ValueError: docs say RuntimeError, then {CUDA}"), None);
        check(&format!("RuntimeError: shapes differ ValueError: {CUDA}"), None);
        check(
            &format!(
                "RuntimeError: MPS backend out of memory During handling: RuntimeError: {CUDA}"
            ),
            Some(OutOfMemory::Mps),
        );
        check(&"RuntimeError: é".repeat(300), None);
    }
}
