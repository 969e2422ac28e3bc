use super::*;
use device::cuda::{BundledArch, Parameter, ParameterLayout};
use form::{FORMS_OF_X, form_of_x};
use ops::DType;

/// A GPU that supports persistent kernels.
pub(crate) fn hopper() -> CudaCapabilities {
    gpu(BundledArch::ALL.iter().find(|arch| arch.compute.major == 9).unwrap())
}

/// A large GPU of an architecture.
pub(crate) fn gpu(arch: &BundledArch) -> CudaCapabilities {
    CudaCapabilities {
        name: arch.arch().to_string(),
        compute: arch.compute,
        multiprocessors: 132,
        shared_bytes: arch.shared_bytes,
        l2_bytes: 50 << 20,
        memory_bytes: 80 << 30,
        driver: (12, 9),
    }
}

/// The fields of a struct of `phase.cuh` in order: type and name.
fn fields(name: &str) -> Vec<(&'static str, &'static str)> {
    let (_, from) = PHASE.split_once(&format!("struct {name} {{\n")).unwrap();
    let (list, _) = from.split_once("\n};").unwrap();
    let lines = list.lines().map(|line| line.split("//").next().unwrap());
    let declared = lines.flat_map(|line| line.split(';')).map(str::trim);
    declared.filter(|one| !one.is_empty()).flat_map(declared_together).collect()
}

/// `int one, two` or `char *one, *two`; a star adjacent to the type belongs only to the first.
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

const PHASE: &str = include_str!("phase.cuh");

/// The fields that a kernel for one stage fills in instead of reading a record.
fn initialized_fields(text: &'static str, name: &str) -> Vec<&'static str> {
    let (_, from) = text.split_once(&format!("{name} = {{")).unwrap();
    from.split_once('}').unwrap().0.split(',').map(str::trim).collect()
}

#[test]
fn record_layouts_match_the_kernel() {
    let [linear, scan] = [include_str!("chain.cu"), include_str!("scan.cu")];
    for (name, layout, alone) in [
        ("Linear", Linear::LAYOUT, Some(initialized_fields(linear, "held[0].linear"))),
        ("Scan", Scan::LAYOUT, Some(initialized_fields(scan, "const Scan of"))),
        ("Norm", Norm::LAYOUT, None),
        ("Up", Up::LAYOUT, None),
        ("Down", Down::LAYOUT, None),
    ] {
        let ParameterLayout { parameters, .. } = layout;
        let kind = |of: &Parameter| if of.kind == "Nullable" { "Pointer" } else { of.kind };
        let given: Vec<_> = parameters.iter().map(|of| (kind(of), of.name)).collect();
        assert_eq!(given, fields(name), "{name}");
        let names: Vec<_> = given.iter().map(|(_, name)| *name).collect();
        assert_eq!(alone.as_ref().unwrap_or(&names), &names, "{name}");
        // The offsets of the C layout.
        let mut end = 0usize;
        for field in *parameters {
            let wanted = if kind(field) == "Pointer" { 8 } else { 4 };
            end = end.next_multiple_of(wanted);
            assert_eq!((field.offset, field.bytes), (end, wanted), "{}", field.name);
            end += wanted;
        }
        assert!(record::FIRST + end <= record::BYTES);
    }
    assert!(PHASE.contains("enum Kind { LINEAR, SCAN, NORM, UP, DOWN };"));
    let kinds = [Kind::Linear, Kind::Scan, Kind::Norm, Kind::Up, Kind::Down];
    assert_eq!(kinds.map(|kind| kind as i32), [0, 1, 2, 3, 4]);
    // The fields of a kind start after two integers.
    let (_, of) = PHASE.split_once("struct __align__(16) Phase {\n").unwrap();
    assert!(of.starts_with("  int kind, unused;\n  union {\n"));
    assert_eq!((record::FIRST, record::BYTES % 16), (8, 0));
}

/// The forms that a kernel of such weights has code for, as `chain.cu` lists them.
fn forms_in_text(weights: Weights) -> Vec<usize> {
    let (mut known, mut inside) = (Vec::new(), vec![true]);
    for line in include_str!("chain.cu").lines().map(str::trim) {
        if let Some(condition) = line.strip_prefix("#if ") {
            let (chosen, few) =
                (weights.experts.is_some(), weights.blocks == 0 || weights.bits() == 4);
            inside.push(match condition {
                // Experts whose tokens are two chunks of a row.
                "CHOSEN" => chosen,
                "!CHOSEN" => !chosen,
                "!CHOSEN || BY_CHUNKS" => true,
                "BY_CHUNKS || !CHOSEN && (!BLOCKS || WEIGHT_BITS == 4)" => chosen || few,
                _ => panic!("{condition}"),
            });
        } else if line == "#endif" {
            inside.pop();
        }
        let form = line.strip_prefix("LINEAR_PHASE(").and_then(|rest| rest.strip_suffix(");"));
        let Some(form) = form.filter(|_| inside.iter().all(|inside| *inside)) else { continue };
        let numbers: Vec<usize> = form.split(", ").map(|one| one.parse().unwrap()).collect();
        let [f32, loads, normed] = numbers[..] else { panic!("{form}") };
        known.push(loads * 4 + f32 * 2 + normed);
    }
    known
}

const TINY: Option<Experts> =
    Some(Experts { of: 64, always: 2, chosen: 8, inner: 512, hidden: 2048 });

#[test]
fn kernels_have_code_for_their_forms_of_x() {
    let rows = Weights::by_rows(DType::E4m3);
    let blocks = |dtype, blocks| Weights { blocks, ..Weights::by_rows(dtype) };
    for (weights, count) in [
        (rows, 4),
        (Weights { experts: TINY, ..rows }, 3),
        (blocks(DType::I8, 32), 3),
        (blocks(DType::U4, 32), 4),
    ] {
        let forms = FORMS_OF_X.map(form_of_x).into_iter().filter(|form| weights.has_form(*form));
        assert_eq!(forms.collect::<Vec<_>>(), forms_in_text(weights), "{weights:?}");
        assert_eq!(forms_in_text(weights).len(), count);
    }
    // The codes of forms are distinct from those of kinds.
    assert!(FORMS_OF_X.into_iter().all(|form| form_of_x(form) > Kind::Down as usize));
}

#[test]
fn a_kernel_runs_stages_of_one_weight_type_and_stages_without_weights() {
    let linear = |weights, form| {
        let form = form_of_x(FORMS_OF_X[form]) as i32;
        PersistentStage::linear(weights, Linear { form, ..Linear::default() })
    };
    let of = |dtype| Weights::by_rows(dtype);
    let six = |weights| Weights { working: 6, ..weights };
    let (e4m3, i8) = (linear(of(DType::E4m3), 0), linear(of(DType::I8), 0));
    let stream = |inputs| PersistentStage::norm(Norm { inputs, ..Norm::default() });
    let (scan, norm) = (PersistentStage::scan(Scan::default()), stream(2048));
    let experts = |weights, experts| {
        PersistentStage::experts(Weights { experts, ..weights }, (Up::default(), Down::default()))
    };
    let tiny = experts(of(DType::E4m3), TINY);
    let others = Some(Experts { of: 32, ..TINY.unwrap() });
    for (one, other, expect) in [
        (&e4m3, &e4m3, true),
        (&e4m3, &i8, false),
        (&scan, &i8, true),
        (&norm, &i8, false),
        (&norm, &e4m3, true),
        (&norm, &linear(six(of(DType::I8)), 0), false),
        (&norm, &stream(1536), false),
        (&tiny, &e4m3, true),
        (&tiny, &norm, true),
        (&tiny, &i8, false),
        (&tiny, &linear(six(of(DType::E4m3)), 0), false),
        (&tiny, &experts(of(DType::E4m3), others), false),
        // Kernels with experts lack one form of x.
        (&tiny, &linear(of(DType::E4m3), 2), false),
        (&tiny, &linear(of(DType::E4m3), 3), true),
        (&e4m3, &linear(of(DType::E4m3), 2), true),
    ] {
        assert_eq!(one.can_share_kernel(std::slice::from_ref(other)), expect, "{one:?} {other:?}");
        assert_eq!(other.can_share_kernel(std::slice::from_ref(one)), expect);
    }
    // Each runs with the scan, but two of them do not run together.
    let wide = linear(of(DType::E4m3), 2);
    assert!(wide.can_share_kernel(&[scan.clone(), e4m3.clone()]));
    assert!(!wide.can_share_kernel(&[scan.clone(), e4m3, tiny]));
    assert!(scan.can_share_kernel(&[]));
    // Only kernels with experts have norms, and experts have one type of weights.
    let kimi = experts(six(of(DType::E4m3)), Some(Experts::of_stream(2304)));
    assert!(kimi.can_share_kernel(&[stream(2304)]));
    assert!(!kimi.can_share_kernel(&[stream(1536)]));
    assert!(!kimi.can_share_kernel(&[linear(six(of(DType::E4m3)), 0)]));
    assert!(!stream(2304).can_share_kernel(&[linear(six(of(DType::E4m3)), 0)]));
    assert!(stream(1536).can_share_kernel(&[linear(six(of(DType::E4m3)), 0)]));
}
