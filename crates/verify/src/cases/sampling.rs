use super::OpCases;
use super::list::{Call, F32, List, integers};
use crate::Tier::{Full, Quick, Standard};
use crate::layout::Axis::{QueryTokens, Whole};
use crate::layout::Layout;
use crate::{Case, Property, TensorRng};
use ops::sampling::{CONTROLS, IN_PROMPT};
use ops::{DType, Settings, Tensor, TensorMap};

pub(super) const OP: OpCases = OpCases { op: "sampling", cases, layout: LAYOUT };

/// Only rows are sampled.
const LAYOUT: Layout = Layout {
    heads: ("logits", 0),
    shared: ("logits", 0),
    whole_groups: false,
    tensors: &[
        ("logits", &[QueryTokens, Whole]),
        ("controls", &[QueryTokens, Whole]),
        ("top_k", &[QueryTokens]),
        ("seed", &[QueryTokens, Whole]),
        ("draw", &[QueryTokens]),
        ("mask", &[QueryTokens, Whole]),
        ("token", &[QueryTokens]),
        ("logprob", &[QueryTokens]),
        ("top_tokens", &[QueryTokens, Whole]),
        ("top_logprobs", &[QueryTokens, Whole]),
    ],
};

fn cases() -> Vec<Case> {
    let mut list = List::new(OP.op);
    models(&mut list);
    edges(&mut list);
    let call = Row::new([4, 3001], [0.8, 0.9, 0.01]).top_k(500).penalties([1.2, 0.3, 0.1]);
    list.property(Quick, "property/same-bits", F32, Property::SameBits, &call);
    list.done()
}

/// Typical sampling parameters, over the vocabularies of Granite 4.0, Kimi-Linear and Gemma: logits of random weights,
/// many of which are alike, and of trained ones, of which few matter.
fn models(list: &mut List) {
    for (name, vocabulary) in [("granite", 100_352), ("kimi", 163_840), ("gemma", 262_144)] {
        let tier = if name == "granite" { Quick } else { Standard };
        let nucleus = Row::new([3, vocabulary], [0.8, 0.9, 0.0]);
        list.add(tier, &format!("{name}/flat-top-p"), F32, &nucleus);
        let peaked = Row { deviation: 4.0, ..nucleus };
        list.add(tier, &format!("{name}/peaked-top-p"), F32, &peaked);
        list.add(
            Full,
            &format!("{name}/batch-32"),
            F32,
            &Row { shape: [32, vocabulary], ..peaked },
        );
    }
    let granite = |controls| Row::new([2, 100_352], controls);
    list.add(Standard, "granite/greedy", F32, &granite([0.0, 1.0, 0.0]));
    list.add(Standard, "granite/warm", F32, &granite([1.0, 1.0, 0.0]));
    list.add(Standard, "granite/top-k", F32, &granite([0.7, 1.0, 0.0]).top_k(40));
    list.add(Standard, "granite/min-p", F32, &granite([1.0, 1.0, 0.05]));
    let all = granite([0.7, 0.95, 0.02]).top_k(100).penalties([1.1, 0.5, 0.2]);
    list.add(Standard, "granite/everything", F32, &Row { mask: Some(0.5), top: 20, ..all });
}

fn edges(list: &mut List) {
    for vocabulary in [1, 2, 3, 31, 32, 33, 127, 1000, 4099] {
        let call = Row::new([5, vocabulary], [0.9, 0.8, 0.0]);
        list.add(Quick, &format!("edge/v{vocabulary}"), F32, &call);
    }
    let base = Row::new([9, 1031], [0.8, 0.9, 0.0]);
    list.add(Quick, "edge/hot", F32, &Row { controls: [50.0, 0.5, 0.0], ..base.clone() });
    list.add(Quick, "edge/cold", F32, &Row { controls: [1e-3, 0.99, 0.0], ..base.clone() });
    list.add(
        Quick,
        "edge/nearly-greedy",
        F32,
        &Row { controls: [1e-40, 1.0, 0.0], ..base.clone() },
    );
    list.add(Quick, "edge/greedy", F32, &Row { controls: [0.0, 0.1, 0.0], ..base.clone() });
    list.add(Quick, "edge/top-1", F32, &base.clone().top_k(1));
    list.add(Quick, "edge/top-k-beyond", F32, &base.clone().top_k(5000));
    list.add(Quick, "edge/least-top-p", F32, &Row { controls: [1.0, 1e-6, 0.0], ..base.clone() });
    list.add(Quick, "edge/min-p-1", F32, &Row { controls: [1.0, 1.0, 1.0], ..base.clone() });
    // Few distinct logits, so that the thresholds fall between equal ones.
    let ties = Row { ties: true, ..base.clone() };
    list.add(Quick, "edge/ties", F32, &ties);
    list.add(Quick, "edge/ties-top-k", F32, &ties.clone().top_k(100));
    list.add(Quick, "edge/ties-both", F32, &ties.clone().top_k(300));
    list.add(Quick, "edge/ties-greedy", F32, &Row { controls: [0.0, 1.0, 0.0], ..ties });
    list.add(Quick, "edge/mask", F32, &Row { mask: Some(0.1), ..base.clone() });
    list.add(Quick, "edge/nothing-allowed", F32, &Row { mask: Some(0.0), ..base.clone() });
    list.add(Quick, "edge/infinite", F32, &Row { infinite: true, ..base.clone() });
    let far = Row { deviation: 1e4, ..base.clone() };
    list.add(Quick, "edge/far-apart", F32, &far);
    let repeated = base.clone().penalties([1.3, 0.0, 0.0]);
    list.add(Quick, "edge/repetition", F32, &repeated);
    let greedy = Row { controls: [0.0, 1.0, 0.0], ..repeated };
    list.add(Quick, "edge/repetition-greedy", F32, &greedy);
    list.add(Quick, "edge/presence", F32, &base.clone().penalties([1.0, 1.5, 0.0]));
    let few = Row { shape: [9, 40], controls: [0.0, 1.0, 0.0], ..base.clone() };
    list.add(Quick, "edge/presence-greedy", F32, &few.penalties([1.0, 1.5, 0.0]));
    list.add(Quick, "edge/frequency", F32, &base.clone().penalties([1.0, 0.0, -0.4]));
    let slots = Row { slots: Some(20), ..base.clone().penalties([1.3, 0.4, 0.2]) };
    list.add(Quick, "edge/slots", F32, &slots);
    for top in [1, 20] {
        list.add(Quick, &format!("edge/top-logprobs-{top}"), F32, &Row { top, ..base.clone() });
    }
    list.add(Quick, "edge/top-logprobs-ties", F32, &Row { top: 7, ties: true, ..base.clone() });
    let whole = Row { shape: [3, 20], top: 20, ..base.clone() };
    list.add(Quick, "edge/top-logprobs-all", F32, &whole);
    list.add(Quick, "edge/no-rows", F32, &Row { shape: [0, 100], ..base });
}

/// A call of sampling, all rows with the same controls.
#[derive(Clone)]
struct Row {
    /// Rows and vocabulary.
    shape: [usize; 2],
    /// Temperature, top-p, min-p.
    controls: [f64; 3],
    /// Repetition, presence, frequency; `None` without counts.
    penalties: Option<[f64; 3]>,
    top_k: usize,
    /// Standard deviation of the logits.
    deviation: f64,
    /// Whether logits are integers.
    ties: bool,
    /// Whether some logits are minus infinity.
    infinite: bool,
    /// Share of allowed tokens in the mask.
    mask: Option<f64>,
    /// Slots of the counts.
    slots: Option<usize>,
    top: usize,
}

impl Row {
    fn new(shape: [usize; 2], controls: [f64; 3]) -> Self {
        Self {
            shape,
            controls,
            penalties: None,
            top_k: 0,
            deviation: 1.0,
            ties: false,
            infinite: false,
            mask: None,
            slots: None,
            top: 0,
        }
    }

    fn top_k(self, top_k: usize) -> Self {
        Self { top_k, ..self }
    }

    fn penalties(self, penalties: [f64; 3]) -> Self {
        Self { penalties: Some(penalties), ..self }
    }

    fn counts(&self, draw: &mut TensorRng, rows: usize) -> Tensor {
        let word = |draw: &mut TensorRng| match draw.below(4) {
            // Half of them in the prompt only.
            0 => (draw.below(2) * draw.below(5)) as i32 | IN_PROMPT,
            1 => draw.below(9) as i32,
            _ => 0,
        };
        let vocabulary = self.shape[1];
        let words: Vec<i32> = (0..rows * vocabulary).map(|_| word(draw)).collect();
        Tensor::new(&[rows, vocabulary], words)
    }
}

impl Call for Row {
    fn draw(&self, draw: &mut TensorRng, _: DType) -> (TensorMap, Settings) {
        let [rows, vocabulary] = self.shape;
        let mut inputs = TensorMap::new();
        let mut put = |name: &str, tensor| drop(inputs.insert(name.to_owned(), tensor));
        let logit = |draw: &mut TensorRng| {
            let x = draw.normal() * self.deviation;
            match draw.below(3) {
                0 if self.infinite => f64::NEG_INFINITY,
                _ if self.ties => x.round(),
                _ => x,
            }
        };
        put("logits", draw.tensor(&self.shape, DType::F32, logit));
        let [repetition, presence, frequency] = self.penalties.unwrap_or([1.0, 0.0, 0.0]);
        let of_row: Vec<f64> =
            self.controls.into_iter().chain([repetition, presence, frequency]).collect();
        let controls = Tensor::new(&[rows, CONTROLS], of_row.repeat(rows));
        put("controls", controls.cast(DType::F32));
        put("top_k", integers(&vec![self.top_k as i32; rows]));
        let mut word = || draw.bits() as i32;
        put("seed", Tensor::new(&[rows, 2], (0..2 * rows).map(|_| word()).collect::<Vec<i32>>()));
        put("draw", integers(&(0..rows).map(|_| word()).collect::<Vec<_>>()));
        if let Some(share) = self.mask {
            let words = vocabulary.div_ceil(32);
            let bit = |draw: &mut TensorRng| i32::from(draw.uniform(0.0, 1.0) < share);
            let word = |draw: &mut TensorRng| (0..32).fold(0, |word, at| word | bit(draw) << at);
            let mask: Vec<i32> = (0..rows * words).map(|_| word(draw)).collect();
            put("mask", Tensor::new(&[rows, words], mask));
        }
        if self.penalties.is_some() {
            put("counts", self.counts(draw, self.slots.unwrap_or(rows)));
        }
        if let Some(slots) = self.slots {
            put("slots", integers(&super::list::slots(draw, rows, slots, true)));
        }
        let mut settings = Settings::new();
        if self.top > 0 {
            settings.set("top_logprobs", self.top);
        }
        (inputs, settings)
    }
}
