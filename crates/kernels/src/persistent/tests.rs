use super::*;
use device::cuda::{Layout, Parameter};

/// The fields of a struct in a text, kind and name, in order: comments left out, several of one type apart.
fn fields<'t>(text: &'t str, name: &str) -> Vec<(&'static str, &'t str)> {
    let (_, from) = text.split_once(&format!("struct {name} {{\n")).unwrap();
    let (list, _) = from.split_once("\n};").unwrap();
    let mut fields = Vec::new();
    for line in list.lines() {
        let line = line.split("//").next().unwrap().trim();
        for one in line.split(';').map(str::trim).filter(|one| !one.is_empty()) {
            let mut names = one.split(',').map(str::trim);
            let first = names.next().unwrap();
            let (of, first) = first.rsplit_once(' ').unwrap();
            let kind = match of.trim_start_matches("const ") {
                "int" => "i32",
                "float" => "f32",
                of => panic!("{name} has a field of type {of}"),
            };
            for field in std::iter::once(first).chain(names) {
                let bare = field.trim_start_matches('*');
                fields.push((if bare == field { kind } else { "Pointer" }, bare));
            }
        }
    }
    fields
}

#[test]
fn records_lie_as_the_kernel_reads_them() {
    // Stars by the names, as where several pointers are declared at once, and the pointed-to types are all the same here.
    let text = include_str!("cuda/phase.cuh");
    let text =
        text.replace("char* ", "int *").replace("void* ", "int *").replace("float* ", "int *");
    let text = text.replace("int* ", "int *").replace("char *", "int *").replace("void *", "int *");
    for (name, layout) in [("Linear", Linear::LAYOUT), ("Scan", Scan::LAYOUT)] {
        let Layout { parameters, .. } = layout;
        let kind = |of: &Parameter| if of.kind == "Nullable" { "Pointer" } else { of.kind };
        let given: Vec<_> = parameters.iter().map(|of| (kind(of), of.name)).collect();
        assert_eq!(given, fields(&text, name), "{name}");
        // Where C puts them.
        let mut end = 0usize;
        for field in *parameters {
            let wanted = if kind(field) == "Pointer" { 8 } else { 4 };
            end = end.next_multiple_of(wanted);
            assert_eq!((field.offset, field.bytes), (end, wanted), "{}", field.name);
            end += wanted;
        }
        assert!(record::FIRST + end <= record::BYTES);
    }
    assert!(text.contains("enum Kind { LINEAR, SCAN };"));
    assert_eq!([record::LINEAR, record::SCAN], [0, 1]);
    // What is of a kind begins behind two integers.
    let (_, of) = text.split_once("struct __align__(16) Phase {\n").unwrap();
    assert!(of.starts_with("  int kind, unused;\n  union {\n"));
    assert_eq!((record::FIRST, record::BYTES % 16), (8, 0));
}

#[test]
fn kernels_take_phases_of_one_form_of_weights_and_any_scan() {
    let (none, e4m3) = (Form::default(), Form { weights: Some(Weights::E4m3) });
    assert_eq!(
        [none.with(none), none.with(e4m3), e4m3.with(none)],
        [Some(none), Some(e4m3), Some(e4m3)]
    );
    assert_eq!(e4m3.with(e4m3), Some(e4m3));
}
