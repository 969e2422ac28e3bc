use super::{Context, Rule, Text};
use crate::gpu::nvidia;
use crate::host;
use facts::{Confidence, Finding, Gpu, Machine, Severity};

pub(super) const RULE: Rule = Rule {
    id: "clocks-held-down",
    title: "a GPU's clocks are held down",
    about: "\
A GPU lowers its clocks by itself when it is too hot (thermal slowdown), when the power supply tells it to (power
brake), or to stay within its power cap. The last is how a GPU at full work runs; the others halve its speed or worse
and mean that cooling or power is not as it should be. Somebody may also have set a power cap below the usual one, or
a clock.

It shows as kernels that are slower than on a sibling, and in nvidia-smi -q as
  HW Thermal Slowdown : Active

Seen by asking NVML for what holds the clocks down now, and for the power cap beside the one the board is delivered
with.

Check fans, airflow and the power cables; take back a cap or a clock that nobody wants.",
    links: &["https://docs.nvidia.com/deploy/nvidia-smi/index.html"],
    texts: &[Text::new("HW Thermal Slowdown : Active", "            HW Thermal Slowdown           : Active")],
    remedy: |seen| inspect(seen.machine()),
    check: Some(check),
    #[cfg(test)]
    cases: tests::cases,
    ..Rule::BLANK
};

/// NVML's names of what is wrong, and what each says. HW_SLOWDOWN alone is one of the two behind it.
pub(super) const ALARMS: [(&str, &str); 4] = [
    ("HW_POWER_BRAKE_SLOWDOWN", "the power supply asks for less"),
    ("HW_THERMAL_SLOWDOWN", "it is too hot, by its own circuits"),
    ("SW_THERMAL_SLOWDOWN", "it is too hot, by the driver"),
    ("HW_SLOWDOWN", "its own circuits lower the clocks"),
];
/// A setting of somebody's.
const SET: &str = "APPLICATIONS_CLOCKS_SETTING";

fn inspect(machine: &Machine) -> Vec<String> {
    let mut lines: Vec<String> = host::driver_location_remark(machine).into_iter().collect();
    lines.push("nvidia-smi --query --display=PERFORMANCE,TEMPERATURE,POWER,CLOCK".into());
    lines
}

fn check(context: &Context) -> Vec<Finding> {
    let machine = context.machine;
    nvidia(machine).flat_map(|gpu| [alarm(machine, gpu), setting(machine, gpu)]).flatten().collect()
}

fn alarm(machine: &Machine, gpu: &Gpu) -> Option<Finding> {
    let held = gpu.health.held_down_by.as_ref()?;
    let (name, why) = ALARMS.iter().find(|(name, _)| held.value.iter().any(|it| it == name))?;
    let title =
        format!("the clocks of GPU {} ({}) are held down: {why}", gpu.index, gpu.name.value);
    let mut draft = RULE
        .finding(Severity::Warning, Confidence::Certain, title)
        .evidence(held.value.join(", "), held.source.clone());
    if let Some(celsius) = &gpu.health.celsius {
        draft = draft.evidence(format!("{} °C", celsius.value), celsius.source.clone());
    }
    if let Some(clock) = &gpu.health.sm_mhz {
        draft = draft.evidence(format!("{} MHz", clock.value), clock.source.clone());
    }
    let cause = if name.contains("POWER") {
        "The power supply or its cables do not give what the GPU needs, and it runs at a fraction of its clock."
    } else {
        "The GPU is not cooled enough for what it computes, and runs at a fraction of its clock until it is."
    };
    Some(draft.cause(cause).fix(inspect(machine)).finish())
}

fn setting(machine: &Machine, gpu: &Gpu) -> Option<Finding> {
    let health = &gpu.health;
    let cap = health.power_cap_milliwatts.as_ref().zip(health.power_default_milliwatts.as_ref());
    let lowered = cap.filter(|(cap, usual)| cap.value < usual.value);
    let clock = health.held_down_by.as_ref().filter(|held| held.value.iter().any(|it| it == SET));
    if lowered.is_none() && clock.is_none() {
        return None;
    }
    let title = format!("GPU {} ({}) is set to less than it can do", gpu.index, gpu.name.value);
    let mut draft = RULE.finding(Severity::Info, Confidence::Certain, title);
    let mut fix = inspect(machine);
    if let Some((cap, usual)) = lowered {
        let what = format!("power cap {} W of {} W", cap.value / 1000, usual.value / 1000);
        draft = draft.evidence(what, cap.source.clone());
        let watts = usual.value / 1000;
        fix.push(format!("sudo nvidia-smi --id={} --power-limit={watts}", gpu.index));
    }
    if let Some(held) = clock {
        draft = draft.evidence(SET, held.source.clone());
        fix.push(format!("sudo nvidia-smi --id={} --reset-applications-clocks", gpu.index));
    }
    let cause =
        "Somebody set a cap or a clock; kernels that need what it takes away are slower by it.";
    Some(draft.cause(cause).fix(fix).finish())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::{Case, machines};
    use facts::{Confidence::*, Fact, Severity::*};

    pub(super) fn cases() -> Vec<Case> {
        let held = |names: &[&str]| {
            let mut machine = machines::h200();
            let names = names.iter().map(|name| (*name).to_owned()).collect();
            let health = &mut machine.gpus[0].health;
            health.held_down_by = Some(Fact::new(names, "NVML"));
            health.celsius = Some(Fact::new(91, "NVML nvmlDeviceGetTemperature"));
            machine
        };
        let mut capped = machines::h200();
        capped.gpus[0].health.power_cap_milliwatts = Some(Fact::new(500_000, "NVML"));
        capped.gpus[0].health.power_default_milliwatts = Some(Fact::new(700_000, "NVML"));
        let case = |what, machine| Case::new(what, machine, Vec::new());
        vec![
            case("too hot", held(&["HW_SLOWDOWN", "HW_THERMAL_SLOWDOWN"])).finds(
                Warning,
                Certain,
                &["too hot, by its own circuits", "91 °C", "not cooled enough"],
            ),
            case("too little power", held(&["HW_SLOWDOWN", "HW_POWER_BRAKE_SLOWDOWN"])).finds(
                Warning,
                Certain,
                &["the power supply asks for less"],
            ),
            case("a lowered cap", capped).finds(
                Info,
                Certain,
                &["power cap 500 W of 700 W", "--power-limit=700"],
            ),
            case("a set clock", held(&[SET])).finds(
                Info,
                Certain,
                &["--reset-applications-clocks"],
            ),
            case("at full work", held(&["SW_POWER_CAP"])),
            case("nothing", held(&[])),
            case("nothing told", machines::h200()),
        ]
    }
}
