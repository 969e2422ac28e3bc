use super::*;
use crate::DType;
use device::cuda::{Layout, Parameter};
use form::{FORMS_OF_X, form_of_x};

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
    let (_, from) = text.split_once(&format!("{name} = {{")).unwrap();
    from.split_once('}').unwrap().0.split(',').map(str::trim).collect()
}

#[test]
fn records_lie_as_the_kernel_reads_them() {
    let [linear, scan] = [include_str!("cuda/chain.cu"), include_str!("cuda/scan.cu")];
    for (name, layout, alone) in [
        ("Linear", Linear::LAYOUT, put_together(linear, "held[0].linear")),
        ("Scan", Scan::LAYOUT, put_together(scan, "const Scan of")),
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
    assert_eq!([Kind::Linear, Kind::Scan].map(|kind| kind as i32), [0, 1]);
    // What is of a kind begins behind two integers.
    let (_, of) = PHASE.split_once("struct __align__(16) Phase {\n").unwrap();
    assert!(of.starts_with("  int kind, unused;\n  union {\n"));
    assert_eq!((record::FIRST, record::BYTES % 16), (8, 0));
}

#[test]
fn forms_of_x_are_known_to_kernels() {
    let forms = FORMS_OF_X.map(form_of_x);
    let text = include_str!("cuda/chain.cu");
    let known = text.lines().filter_map(|line| {
        let (f32, rest) =
            line.trim().strip_prefix("LINEAR_PHASE(")?.strip_suffix(");")?.split_once(", ")?;
        let (loads, normed) = rest.split_once(", ")?;
        let [f32, loads, normed] = [f32, loads, normed].map(|one| one.parse::<usize>().unwrap());
        Some(loads * 4 + f32 * 2 + normed)
    });
    assert_eq!(known.collect::<Vec<_>>(), forms);
}

#[test]
fn kernels_take_phases_of_one_kind_of_weights_and_any_scan() {
    let of = |dtype| Phase::linear(Weights::by_rows(dtype), Linear::default());
    let (e4m3, i8, scan) = (of(DType::E4m3), of(DType::I8), Phase::scan(Scan::default()));
    let all = [(&e4m3, &e4m3, true), (&e4m3, &i8, false), (&scan, &i8, true), (&i8, &scan, true)];
    for (one, other, expect) in all {
        assert_eq!(one.goes_with(other), expect);
    }
}
