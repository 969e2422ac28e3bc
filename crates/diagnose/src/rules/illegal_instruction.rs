use super::{Rule, Text};

pub(super) const RULE: Rule = Rule {
    id: "illegal-instruction",
    title: "a program uses instructions that this processor does not have",
    about: "\
A compiled file was built for a newer CPU than this one: TensorFlow's wheels need AVX, others AVX2 or AVX-512, and code
compiled with -march=native may run only on the CPU model it was built on. Virtual machines often hide instructions that
the CPU has (a CPU type of `kvm64` or `qemu64`), and x86-64 emulation on a Mac may have no AVX.

It shows as
  Illegal instruction (core dumped)
while a package is imported, with no Python error.

Check whether /proc/cpuinfo has the flag; in a virtual machine pass the host's CPU through. Otherwise use a build for
this CPU: an older release, a conda-forge build, or a build from source.",
    links: &[],
    texts: &[
        Text::new("^Illegal instruction (core dumped)", "Illegal instruction (core dumped)"),
        Text::new("was compiled to use AVX* instructions, but these aren't available on your machine", "F tensorflow/core/platform/cpu_feature_guard.cc:38] The TensorFlow library was compiled to use AVX instructions, but these aren't available on your machine."),
    ],
    remedy: |_| {
        vec![
            "grep -o -w -E 'avx|avx2|avx512f|fma|sse4_2' /proc/cpuinfo | sort | uniq --count".into(),
            "# which file it was:".into(),
            "sudo dmesg | grep 'trap invalid opcode' | tail -n 1".into(),
        ]
    },
    ..Rule::BLANK
};
