use super::*;
use half::bf16;

/// Pseudo-random values in (-1, 1) with few bits, so that bfloat16 holds them exactly.
fn values(seed: u32, count: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761) | 1;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        ((state >> 24) as f32 - 127.5) / 128.0
    };
    (0..count).map(|_| bf16::from_f32(next()).to_f32()).collect()
}

fn exact(a: Mat<'_>, b: Mat<'_>) -> Vec<f64> {
    let at =
        |m: &Mat<'_>, i: usize, j: usize| f64::from(m.data[i * m.row_stride + j * m.column_stride]);
    let mut c = Vec::new();
    for i in 0..a.rows {
        for j in 0..b.columns {
            c.push((0..a.columns).map(|k| at(&a, i, k) * at(&b, k, j)).sum());
        }
    }
    c
}

fn check(name: &str, got: &[f32], want: impl Iterator<Item = f64>) {
    for (index, (got, want)) in got.iter().zip(want).enumerate() {
        assert!(
            (f64::from(*got) - want).abs() < 1e-3,
            "{name}: element {index} is {got}, wanted {want}"
        );
    }
}

const SIZES: [[usize; 3]; 9] = [
    [1, 1, 1],
    [1, 33, 7],
    [12, 32, 16],
    [13, 31, 5],
    [25, 65, 64],
    [5, 0, 3],
    [3, 4, 0],
    [64, 64, 128],
    [100, 17, 99],
];

#[test]
fn every_instruction_set_and_layout_agrees_with_float64() {
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_here()) {
        for [m, n, k] in SIZES {
            let (a, b) = (values(1, m * k), values(2, k * n));
            let (at, bt) = (values(3, m * k), values(4, k * n));
            for (a, a_name) in [(Mat::new(&a, m, k, k), "A"), (Mat::new(&at, k, m, m).t(), "A'")] {
                for (b, b_name) in
                    [(Mat::new(&b, k, n, n), "B"), (Mat::new(&bt, n, k, k).t(), "B'")]
                {
                    let name = format!("{isa} {a_name}{b_name} {m}x{n}x{k}");
                    let want = exact(a, b);
                    let mut packed = PackedB::new();
                    let mut c = vec![f32::NAN; m * n];
                    gemm_f32(
                        isa,
                        2.0,
                        a,
                        b,
                        Store::Replace,
                        MatMut::new(&mut c, m, n, n),
                        &mut packed,
                    );
                    check(&name, &c, want.iter().map(|x| 2.0 * x));
                    gemm_packed(isa, -1.0, a, &packed, Store::Add, MatMut::new(&mut c, m, n, n));
                    check(&name, &c, want.iter().copied());
                }
            }
        }
    }
}

#[test]
fn product_writes_only_the_columns_of_c() {
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_here()) {
        let (a, b) = (values(1, 5 * 4), values(2, 4 * 3));
        let mut c = vec![7f32; 5 * 40];
        let into = MatMut::new(&mut c, 5, 3, 40);
        gemm_f32(
            isa,
            1.0,
            Mat::new(&a, 5, 4, 4),
            Mat::new(&b, 4, 3, 3),
            Store::Replace,
            into,
            &mut PackedB::new(),
        );
        assert!(c.chunks(40).all(|row| row[3..].iter().all(|x| *x == 7.0)), "{isa}");
    }
}

#[test]
fn bfloat16_products_agree_with_float64() {
    if !Isa::Avx512Bf16.is_here() {
        return;
    }
    for [m, n, k] in SIZES {
        let (a, b, bt) = (values(1, m * k), values(2, k * n), values(4, k * n));
        let narrow = |x: &[f32]| x.iter().map(|x| bf16::from_f32(*x)).collect::<Vec<_>>();
        let (half_a, half_b, half_bt) = (narrow(&a), narrow(&b), narrow(&bt));
        for (name, half, full) in [
            ("B", Mat::new(&half_b[..], k, n, n), Mat::new(&b[..], k, n, n)),
            ("B'", Mat::new(&half_bt[..], n, k, k).t(), Mat::new(&bt[..], n, k, k).t()),
        ] {
            let want = exact(Mat::new(&a, m, k, k), full);
            let mut packed = PackedBf16::new();
            packed.pack(half);
            let mut c = vec![f32::NAN; m * n];
            gemm_bf16(
                0.5,
                Mat::new(&half_a, m, k, k),
                &packed,
                Store::Replace,
                MatMut::new(&mut c, m, n, n),
            );
            check(&format!("bf16 A{name} {m}x{n}x{k}"), &c, want.iter().map(|x| 0.5 * x));
            gemm_bf16(
                0.5,
                Mat::new(&half_a, m, k, k),
                &packed,
                Store::Add,
                MatMut::new(&mut c, m, n, n),
            );
            check(&format!("bf16 A{name} {m}x{n}x{k}"), &c, want.iter().copied());
        }
    }
}

#[test]
fn products_over_all_cores_agree_with_float64() {
    let device = device::Device::processor();
    for [m, n, k] in [[0, 5, 5], [1, 1, 1], [97, 513, 1025], [200, 600, 40], [3, 4, 0]] {
        let (a, b) = (values(1, m * k), values(2, k * n));
        let want = exact(Mat::new(&a, m, k, k), Mat::new(&b, k, n, n));
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_here()) {
            let mut c = vec![f32::NAN; m * n];
            gemm_f32_parallel(&device, isa, [m, n, k], &a, &b, &mut c);
            check(&format!("{isa} {m}x{n}x{k}"), &c, want.iter().copied());
        }
        if Isa::Avx512Bf16.is_here() {
            let narrow = |x: &[f32]| x.iter().map(|x| bf16::from_f32(*x)).collect::<Vec<_>>();
            let mut c = vec![f32::NAN; m * n];
            gemm_bf16_parallel(&device, [m, n, k], &narrow(&a), &narrow(&b), &mut c);
            check(&format!("bf16 {m}x{n}x{k}"), &c, want.iter().copied());
        }
    }
    assert!(device.launches().of("gemm.f32").count > 0);
}
