use super::map::{Exp, Map, map};
use super::*;

struct Apply<'a, F>(&'a mut [f32], F);

impl<F: Map> SimdKernel for Apply<'_, F> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        map(simd, self.0, self.1);
    }
}

macro_rules! map {
    ($name:ident, $f:path) => {
        #[derive(Clone, Copy)]
        struct $name;
        impl Map for $name {
            #[inline(always)]
            fn map<S: Simd>(self, simd: S, x: S::V) -> S::V {
                $f(simd, x)
            }
        }
    };
}
map!(Ln, math::ln);
map!(Softplus, math::softplus);
map!(Sigmoid, math::sigmoid);
map!(First, first_sigmoid);
map!(Second, second_sigmoid);
map!(Silu, math::silu);
map!(Tanh, math::tanh);

#[inline(always)]
fn first_sigmoid<S: Simd>(simd: S, x: S::V) -> S::V {
    math::sigmoids(simd, x)[0]
}

#[inline(always)]
fn second_sigmoid<S: Simd>(simd: S, x: S::V) -> S::V {
    math::sigmoids(simd, x)[1]
}

fn sweep(low: f32, high: f32) -> Vec<f32> {
    (0..20_001).map(|i| low + (high - low) * (i as f32 / 20_000.0)).collect()
}

/// Every instruction set this machine has, against f64: relative error within `limit`.
fn check(name: &str, f: impl Map, xs: &[f32], exact: impl Fn(f64) -> f64, limit: f64) {
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_here()) {
        let mut got = xs.to_vec();
        dispatch(isa, Apply(&mut got, f));
        for (x, got) in xs.iter().zip(&got) {
            let want = exact(f64::from(*x));
            let error = (f64::from(*got) - want).abs() / want.abs().max(1e-37);
            assert!(
                error <= limit,
                "{name} {isa}: f({x:e}) = {got:e}, wanted {want:e}, error {error:e}"
            );
        }
    }
}

#[test]
fn elementary_functions_agree_with_float64_on_every_instruction_set() {
    check("exp", Exp, &sweep(-87.3, 88.7), f64::exp, 2e-7);
    check("ln", Ln, &sweep(1e-30, 4.0), f64::ln, 3e-7);
    check("ln", Ln, &sweep(4.0, 1e30), f64::ln, 2e-7);
    check("softplus", Softplus, &sweep(-80.0, 19.9), |x| x.exp().ln_1p(), 5e-7);
    check("softplus", Softplus, &sweep(20.1, 1e4), |x| x, 0.0);
    check("sigmoid", Sigmoid, &sweep(-80.0, 80.0), |x| 1.0 / (1.0 + (-x).exp()), 4e-7);
    check("sigmoids", First, &sweep(-80.0, 80.0), |x| 1.0 / (1.0 + (-x).exp()), 4e-7);
    check("sigmoids", Second, &sweep(-80.0, 80.0), |x| 1.0 / (1.0 + x.exp()), 4e-7);
    check("silu", Silu, &sweep(-80.0, 80.0), |x| x / (1.0 + (-x).exp()), 4e-7);
    check("tanh", Tanh, &sweep(-20.0, 20.0), f64::tanh, 6e-7);
}

#[test]
fn exp_at_the_edges() {
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_here()) {
        let xs = [f32::NEG_INFINITY, -1e30, -88.0, 0.0, 88.8, 1e30, f32::INFINITY, f32::NAN];
        let mut got = xs;
        dispatch(isa, Apply(&mut got, Exp));
        assert_eq!(
            got[..7],
            [0.0, 0.0, 0.0, 1.0, f32::INFINITY, f32::INFINITY, f32::INFINITY],
            "{isa}"
        );
        assert!(got[7].is_nan(), "{isa}: {}", got[7]);
    }
}

struct Rest;

impl SimdKernel for Rest {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let from: Vec<f32> = (0..S::TRANSPOSE * 11).map(|i| i as f32).collect();
        let mut to = vec![f32::NAN; S::TRANSPOSE * 13];
        // SAFETY: rows of 11 and 13 hold TRANSPOSE values.
        unsafe { s.transpose(from.as_ptr(), 11, to.as_mut_ptr(), 13) };
        for row in 0..S::TRANSPOSE {
            for column in 0..S::TRANSPOSE {
                assert_eq!(to[column * 13 + row], from[row * 11 + column], "{}", S::ISA);
            }
        }
        let triples: Vec<f32> = (0..3 * S::LANES).map(|i| i as f32).collect();
        let vectors = std::array::from_fn(|j| {
            // SAFETY: three times LANES values.
            unsafe { s.load(triples.as_ptr().add(j * S::LANES)) }
        });
        let split = s.split_triples(vectors);
        let joined = s.join_triples(split);
        for k in 0..3 {
            let mut member = vec![f32::NAN; S::LANES];
            let mut again = vec![f32::NAN; S::LANES];
            // SAFETY: LANES values each.
            unsafe {
                s.store(member.as_mut_ptr(), split[k]);
                s.store(again.as_mut_ptr(), joined[k]);
            }
            for (c, x) in member.iter().enumerate() {
                assert_eq!(*x, (3 * c + k) as f32, "{} member {k} of {c}", S::ISA);
            }
            assert_eq!(again, triples[k * S::LANES..][..S::LANES], "{}", S::ISA);
        }
        let lanes: Vec<f32> = (0..S::LANES).map(|i| (i as f32 - 3.0) * 1.5).collect();
        // SAFETY: LANES values.
        let v = unsafe { s.load(lanes.as_ptr()) };
        assert_eq!(s.reduce_add(v), lanes.iter().sum::<f32>(), "{}", S::ISA);
        assert_eq!(s.reduce_max(v), *lanes.last().unwrap(), "{}", S::ISA);
        let mut rounded = lanes.clone();
        // SAFETY: LANES values.
        unsafe { s.store(rounded.as_mut_ptr(), s.round(v)) };
        for (x, got) in lanes.iter().zip(&rounded) {
            assert_eq!(*got, x.round_ties_even(), "{}", S::ISA);
        }
        let halves: Vec<half::bf16> = lanes.iter().map(|x| half::bf16::from_f32(*x)).collect();
        // SAFETY: LANES values.
        unsafe { s.store(rounded.as_mut_ptr(), s.load_bf16(halves.as_ptr())) };
        assert_eq!(rounded, lanes, "{}", S::ISA);
    }
}

#[test]
fn moves_and_reductions_on_every_instruction_set() {
    Isa::ALL.into_iter().filter(|isa| isa.is_here()).for_each(|isa| dispatch(isa, Rest));
}
