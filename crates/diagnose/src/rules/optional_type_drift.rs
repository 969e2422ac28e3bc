use super::{Rule, Text};

pub(super) const RULE: Rule = Rule {
    id: "optional-type-drift",
    title: "an extension built for a torch with another optional type",
    about: "\
torch replaced its own c10::optional by std::optional (the change began with 2.1 and ended with 2.5), and the type is
part of the name of every operator that takes one. An extension built on one side finds no operator of a torch on
the other side.

It shows, when the extension is imported, as
  undefined symbol: _ZN2at4_ops10zeros_like4callERKNS_6TensorEN3c108optionalINS5_10ScalarTypeEEE...
where `N3c108optional` is the old type and `St8optional` the new one.

Seen by looking the extension's undefined symbols up in what the installed libtorch_cpu.so exports.

Build the extension here without isolation, or install its wheel for the installed torch release.",
    links: &[
        "https://github.com/state-spaces/mamba/issues/149",
        "https://github.com/state-spaces/mamba/issues/576",
    ],
    texts: &[
        Text {
            pattern: "undefined symbol: _ZN2at4_ops*N3c108optionalI*",
            sample: "ImportError: /v/lib/python3.10/site-packages/selective_scan_cuda.cpython-310-x86_64-linux-gnu.so: undefined symbol: _ZN2at4_ops10zeros_like4callERKNS_6TensorEN3c108optionalINS5_10ScalarTypeEEENS6_INS5_6LayoutEEENS6_INS5_6DeviceEEENS6_IbEENS6_INS5_12MemoryFormatEEE",
        },
        Text {
            pattern: "undefined symbol: _ZN2at4_ops*St8optionalI*",
            sample: "ImportError: /v/lib/python3.12/site-packages/selective_scan_cuda.cpython-312-x86_64-linux-gnu.so: undefined symbol: _ZN2at4_ops10zeros_like4callERKNS_6TensorESt8optionalIN3c1010ScalarTypeEES5_INS6_6LayoutEES5_INS6_6DeviceEES5_IbES5_INS6_12MemoryFormatEE",
        },
    ],
    remedy: |seen| seen.fitting_extension(),
    ..Rule::BLANK
};
