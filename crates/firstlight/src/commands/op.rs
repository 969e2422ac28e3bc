//! `firstlight op`: one op on tensors from a file.

use crate::backend::{self, DeviceNotice, OpenedDevice};
use crate::cli::Op;
use crate::failure::Failure;
use crate::output::Output;
use crate::run_folder::write_atomically;
use crate::{Outcome, destination, tensors};
use device::Device;
use facts::{BackendKind, SCHEMA};
use ops::{OpSpec, SettingKind, Settings, TensorMap, op};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::time::Instant;

#[derive(Serialize)]
struct OpRun {
    schema: u32,
    op: &'static str,
    backend: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<DeviceNotice>,
    variant: String,
    refused: Vec<RefusedVariant>,
    launches: u64,
    millis: f64,
    outputs: BTreeMap<String, OutputTensor>,
    file: String,
}

#[derive(Serialize)]
struct RefusedVariant {
    variant: &'static str,
    reason: String,
}

#[derive(Serialize)]
struct OutputTensor {
    shape: Vec<usize>,
    dtype: &'static str,
}

pub(super) fn run(arguments: &Op, output: &Output) -> anyhow::Result<Outcome> {
    let op = op(&arguments.name)?;
    if arguments.explain_choice {
        let choices = Choices::of(op);
        output.either(&choices, |_| choices.text())?;
        return Ok(Outcome::Good);
    }
    let (Some(input), Some(into)) = (&arguments.input, &arguments.output) else {
        output.either(&Table::of(op.spec()), |_| describe(op.spec()))?;
        return Ok(Outcome::Good);
    };
    let settings = settings(&arguments.settings)?;
    destination::file(into)?;
    destination::not_of(std::slice::from_ref(input), into)?;
    let inputs = tensors::read(input)?;
    let call = op.bind(&inputs, &settings)?;
    let mut ran = OpRun {
        schema: SCHEMA,
        op: op.spec().name,
        backend: BackendKind::Cpu.as_str(),
        device: None,
        variant: "reference".to_owned(),
        refused: Vec::new(),
        launches: 0,
        millis: 0.0,
        outputs: BTreeMap::new(),
        file: into.display().to_string(),
    };
    if arguments.reference {
        let start = Instant::now();
        let outputs = call.reference();
        ran.millis = start.elapsed().as_secs_f64() * 1e3;
        write(&outputs, into, &mut ran)?;
    } else {
        let select =
            |device: &Device| call.select(device, arguments.variant.as_deref()).map(|_| ());
        let OpenedDevice { device, device_notice, .. } =
            backend::begin(arguments.backend).end(|device| Ok(select(device)?))?;
        ran.backend = device_notice.backend().as_str();
        ran.device = Some(device_notice);
        let selection = call.select(&device, arguments.variant.as_deref())?;
        ran.variant = selection.chosen.to_owned();
        let refused = selection.refused.into_iter();
        ran.refused = refused
            .map(|refusal| RefusedVariant { variant: refusal.variant, reason: refusal.reason })
            .collect();
        let mut execution = call.prepare(&device, selection.chosen)?;
        ran.millis = execution.time()?;
        ran.launches = device.launches().of(execution.kernel()).count;
        write(execution.outputs()?, into, &mut ran)?;
    }
    output.either(&ran, |_| text(&ran, output))?;
    Ok(Outcome::Good)
}

fn settings(given: &[String]) -> anyhow::Result<Settings> {
    let mut settings = Settings::new();
    for setting in given {
        let Some((name, value)) = setting.split_once('=') else {
            return Err(Failure::hinted(
                format!("`--set {setting}` has no value"),
                "write it as `--set name=value`",
            ));
        };
        settings.set(name.trim(), value.trim());
    }
    Ok(settings)
}

fn write(outputs: &TensorMap, into: &Path, ran: &mut OpRun) -> anyhow::Result<()> {
    // A kernel that left an element unwritten must not produce a file that looks like a result.
    if let Some((name, at)) =
        outputs.iter().find_map(|(name, tensor)| tensor.first_nan().map(|at| (name, at)))
    {
        let hint = "inputs that overflow the storage type give NaN; try float32, or `--reference` for the exact answer";
        return Err(Failure::hinted(format!("output `{name}` is NaN at element {at}"), hint));
    }
    write_atomically(into, &tensors::to_bytes(outputs)?)?;
    for (name, tensor) in outputs {
        let written =
            OutputTensor { shape: tensor.shape().to_vec(), dtype: tensor.dtype().as_str() };
        ran.outputs.insert(name.clone(), written);
    }
    Ok(())
}

fn text(ran: &OpRun, output: &Output) -> String {
    let mut out =
        ran.device.as_ref().map_or_else(String::new, |device_notice| device_notice.text(output));
    // Writing to a String cannot fail, here and below.
    let _ =
        writeln!(out, "{} by {} on {} in {:.3} ms", ran.op, ran.variant, ran.backend, ran.millis);
    for refused in &ran.refused {
        let _ = writeln!(out, "  not {}: {}", refused.variant, refused.reason);
    }
    for (name, written) in &ran.outputs {
        let _ = writeln!(out, "{name} {:?} {}", written.shape, written.dtype);
    }
    let _ = writeln!(out, "wrote {}", ran.file);
    out
}

/// Output of `--explain-choice`.
#[derive(Serialize)]
struct Choices {
    schema: u32,
    op: &'static str,
    variants: Vec<(&'static str, &'static str)>,
    tables: Vec<Rules>,
}

#[derive(Serialize)]
struct Rules {
    title: &'static str,
    columns: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

impl Choices {
    fn of(op: &dyn ops::Op) -> Self {
        let rules = |table: ops::ChoiceTable| Rules {
            title: table.title,
            columns: table.columns.to_vec(),
            rows: table.rows,
        };
        let variants = backends::variants(op.spec().name).into_iter();
        Self {
            schema: SCHEMA,
            op: op.spec().name,
            variants: variants.map(|(name, backend)| (name, backend.as_str())).collect(),
            tables: backends::choice_tables(op.spec().name).into_iter().map(rules).collect(),
        }
    }

    fn text(&self) -> String {
        let mut out = format!("{}: variants, best first where no table decides\n", self.op);
        for (name, backend) in &self.variants {
            // Writing to a String cannot fail.
            let _ = writeln!(out, "  {name} ({backend})");
        }
        for table in &self.tables {
            let heads: Vec<String> = table.columns.iter().map(|head| (*head).to_owned()).collect();
            let lines: Vec<&Vec<String>> = std::iter::once(&heads).chain(&table.rows).collect();
            let width = |column: usize| {
                lines.iter().filter_map(|line| line.get(column)).map(String::len).max().unwrap_or(0)
            };
            let _ = writeln!(out, "\n{}", table.title);
            for line in &lines {
                let cells = line.iter().enumerate();
                let cells =
                    cells.map(|(column, cell)| format!("{cell:<width$}", width = width(column)));
                let _ = writeln!(out, "  {}", cells.collect::<Vec<_>>().join("  ").trim_end());
            }
        }
        out
    }
}

#[derive(Serialize)]
struct Table {
    schema: u32,
    op: &'static str,
    summary: &'static str,
    inputs: Vec<TableTensor>,
    outputs: Vec<TableTensor>,
    settings: Vec<TableSetting>,
}

#[derive(Serialize)]
struct TableTensor {
    name: &'static str,
    shape: &'static str,
    required: bool,
    about: &'static str,
}

#[derive(Serialize)]
struct TableSetting {
    name: &'static str,
    values: String,
    default: &'static str,
    about: &'static str,
}

impl Table {
    fn of(spec: &OpSpec) -> Self {
        let tensors = |list: &[ops::TensorSpec]| {
            let row = |tensor: &ops::TensorSpec| TableTensor {
                name: tensor.name,
                shape: tensor.shape,
                required: tensor.required,
                about: tensor.about,
            };
            list.iter().map(row).collect()
        };
        let setting = |setting: &ops::SettingSpec| TableSetting {
            name: setting.name,
            values: values(setting.kind),
            default: setting.default,
            about: setting.about,
        };
        Self {
            schema: SCHEMA,
            op: spec.name,
            summary: spec.summary,
            inputs: tensors(spec.inputs),
            outputs: tensors(spec.outputs),
            settings: spec.settings.iter().map(setting).collect(),
        }
    }
}

fn values(kind: SettingKind) -> String {
    match kind {
        SettingKind::Bool => "true|false".to_owned(),
        SettingKind::Number => "number".to_owned(),
        SettingKind::Count => "count".to_owned(),
        SettingKind::Counts => "count,..".to_owned(),
        SettingKind::Choice(words) => words.join("|"),
    }
}

/// The op's table, for `firstlight op NAME`.
fn describe(spec: &OpSpec) -> String {
    let table = Table::of(spec);
    let mut out = format!("{}: {}\n", table.op, table.summary);
    for (title, tensors) in [("inputs", &table.inputs), ("outputs", &table.outputs)] {
        let _ = writeln!(out, "\n{title}");
        for tensor in tensors {
            let optional = if tensor.required { "" } else { " (optional)" };
            let _ = writeln!(
                out,
                "  {} {}{optional}\n      {}",
                tensor.name, tensor.shape, tensor.about
            );
        }
    }
    let _ = writeln!(out, "\nsettings (--set name=value)");
    for setting in &table.settings {
        let _ = writeln!(
            out,
            "  {}={}  default {}\n      {}",
            setting.name, setting.values, setting.default, setting.about
        );
    }
    out
}
