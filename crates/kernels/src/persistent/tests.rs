use super::*;
use device::cuda::{Layout, Parameter};

/// The fields of a struct of `phase.cuh`, kind and name, in order.
fn fields(name: &str) -> Vec<(&'static str, &'static str)> {
    let (_, from) = PHASE.split_once(&format!("struct {name} {{\n")).unwrap();
    let (list, _) = from.split_once("\n};").unwrap();
    let lines = list.lines().map(|line| line.split("//").next().unwrap());
    let declared = lines.flat_map(|line| line.split(';')).map(str::trim);
    declared.filter(|one| !one.is_empty()).flat_map(declared_together).collect()
}

/// `int one, two` or `char *one, *two`; a star beside the type belongs to the first alone.
fn declared_together(list: &'static str) -> Vec<(&'static str, &'static str)> {
    let (first, rest) = list.split_once(',').unwrap_or((list, ""));
    let (of, first) = first.rsplit_once(' ').unwrap();
    let kind = match of.trim_start_matches("const ").trim_end_matches('*') {
        "int" => "i32",
        "float" => "f32",
        _ => "",
    };
    let names = std::iter::once(first).chain(rest.split(',').map(str::trim));
    let field = |(at, name): (usize, &'static str)| {
        let bare = name.trim_start_matches('*');
        let points = bare != name || at == 0 && of.ends_with('*');
        (if points { "Pointer" } else { kind }, bare)
    };
    names.filter(|name| !name.is_empty()).enumerate().map(field).collect()
}

const PHASE: &str = include_str!("cuda/phase.cuh");

/// What a kernel of one phase puts together in the place of a record.
fn put_together(text: &'static str, name: &str) -> Vec<&'static str> {
    let (_, from) = text.split_once(&format!("held.{name} = {{")).unwrap();
    from.split_once('}').unwrap().0.split(',').map(str::trim).collect()
}

#[test]
fn records_lie_as_the_kernel_reads_them() {
    let [linear, scan] = [include_str!("cuda/linear.cu"), include_str!("cuda/scan.cu")];
    for (name, layout, alone) in [
        ("Linear", Linear::LAYOUT, put_together(linear, "linear")),
        ("Scan", Scan::LAYOUT, put_together(scan, "scan")),
    ] {
        let Layout { parameters, .. } = layout;
        let kind = |of: &Parameter| if of.kind == "Nullable" { "Pointer" } else { of.kind };
        let given: Vec<_> = parameters.iter().map(|of| (kind(of), of.name)).collect();
        assert_eq!(given, fields(name), "{name}");
        let names: Vec<_> = given.iter().map(|(_, name)| *name).collect();
        assert_eq!(names, alone, "{name}");
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
    assert!(PHASE.contains("enum Kind { LINEAR, SCAN };"));
    assert_eq!([record::LINEAR, record::SCAN], [0, 1]);
    // What is of a kind begins behind two integers.
    let (_, of) = PHASE.split_once("struct __align__(16) Phase {\n").unwrap();
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
