//! Evaluates the Terraform module's variables and locals as Terraform does, without it: the same language, with those of
//! its functions that the module calls.

use std::path::{Path, PathBuf};

use hcl::eval::{Context, Evaluate as _, FuncArgs, FuncDef, ParamType};
use hcl::{Block, Body, Expression, Map, Template, Value};

/// `deploy/iam`.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the package lies in the workspace").join("deploy/iam")
}

/// A file of the module.
pub fn file(name: &str) -> Body {
    let path = folder().join(name);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    hcl::parse(&text).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// What the module makes of its inputs.
pub struct Evaluated {
    pub policy: serde_json::Value,
    pub trust: serde_json::Value,
    /// The messages of the validations that refuse the inputs.
    pub refusals: Vec<String>,
}

/// The module with these inputs over its defaults.
pub fn evaluate(inputs: &serde_json::Value) -> Evaluated {
    let mut given: Map<String, Value> = serde_json::from_value(inputs.clone()).expect("an object");
    let mut context = functions();
    let variables = file("variables.tf");
    for variable in blocks(&variables, "variable") {
        let name = label(variable);
        if !given.contains_key(name) {
            let default = attribute(variable, "default").unwrap_or_else(|| panic!("{name} has no default"));
            given.insert(name.to_owned(), default.evaluate(&context).expect("a default"));
        }
    }
    context.declare_var("var", Value::Object(given));
    let module = folder().display().to_string();
    context.declare_var("path", Value::Object([("module".to_owned(), Value::from(module))].into_iter().collect()));
    let refusals = blocks(&variables, "variable")
        .flat_map(|variable| blocks(&variable.body, "validation"))
        .filter(|validation| evaluated(&context, validation, "condition") != Value::Bool(true))
        .map(|validation| evaluated(&context, validation, "error_message").as_str().expect("a text").to_owned())
        .collect();

    let mut locals = Map::new();
    for local in blocks(&file("policy.tf"), "locals").flat_map(|block| block.body.attributes()) {
        let value = local.expr.evaluate(&context).unwrap_or_else(|error| panic!("local.{}: {error}", local.key()));
        locals.insert(local.key().to_owned(), value);
        // In the order of the file, each sees those before it.
        context.declare_var("local", Value::Object(locals.clone()));
    }
    let document = |name: &str| {
        let text = locals.get(name).and_then(Value::as_str).unwrap_or_else(|| panic!("local.{name} is no text"));
        serde_json::from_str(text).unwrap_or_else(|error| panic!("local.{name} is no JSON: {error}"))
    };
    Evaluated { policy: document("policy"), trust: document("trust"), refusals }
}

pub fn blocks<'a>(body: &'a Body, kind: &'a str) -> impl Iterator<Item = &'a Block> {
    body.blocks().filter(move |block| block.identifier() == kind)
}

pub fn label(block: &Block) -> &str {
    block.labels().first().expect("a label").as_str()
}

pub fn attribute<'a>(block: &'a Block, name: &str) -> Option<&'a Expression> {
    block.body().attributes().find(|attribute| attribute.key() == name).map(|attribute| attribute.expr())
}

fn evaluated(context: &Context<'_>, block: &Block, name: &str) -> Value {
    let expression = attribute(block, name).unwrap_or_else(|| panic!("no {name}"));
    expression.evaluate(context).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// What the language has no word of and Terraform brings along.
fn functions() -> Context<'static> {
    let mut context = Context::new();
    let mut one = |name: &'static str, function: fn(FuncArgs) -> Result<Value, String>| {
        context.declare_func(name, FuncDef::builder().param(ParamType::Any).build(function));
    };
    one("jsondecode", |args| serde_json::from_str(text(&args, 0)?).map_err(|error| error.to_string()));
    one("jsonencode", |args| serde_json::to_string(&args[0]).map(Value::from).map_err(|error| error.to_string()));
    one("flatten", |args| Ok(Value::Array(list(&args, 0)?.iter().flat_map(flat).collect())));
    one("length", |args| Ok(Value::from(list(&args, 0)?.len())));
    one("alltrue", |args| Ok(Value::Bool(list(&args, 0)?.iter().all(|value| *value == Value::Bool(true)))));
    one("distinct", |args| {
        let mut kept: Vec<Value> = Vec::new();
        for value in list(&args, 0)? {
            if !kept.contains(value) {
                kept.push(value.clone());
            }
        }
        Ok(Value::Array(kept))
    });
    let mut two = |name: &'static str, function: fn(FuncArgs) -> Result<Value, String>| {
        context.declare_func(name, FuncDef::builder().params([ParamType::Any, ParamType::Any]).build(function));
    };
    two("contains", |args| Ok(Value::Bool(list(&args, 0)?.contains(&args[1]))));
    two("startswith", |args| Ok(Value::Bool(text(&args, 0)?.starts_with(text(&args, 1)?))));
    two("endswith", |args| Ok(Value::Bool(text(&args, 0)?.ends_with(text(&args, 1)?))));
    two("split", |args| Ok(Value::Array(text(&args, 1)?.split(text(&args, 0)?).map(Value::from).collect())));
    two("trimsuffix", |args| {
        let whole = text(&args, 0)?;
        Ok(Value::from(whole.strip_suffix(text(&args, 1)?).unwrap_or(whole)))
    });
    two("templatefile", |args| {
        let written = std::fs::read_to_string(text(&args, 0)?).map_err(|error| error.to_string())?;
        let template: Template = written.parse().map_err(|error: hcl::Error| error.to_string())?;
        let mut context = Context::new();
        for (name, value) in args[1].as_object().ok_or("templatefile takes an object")? {
            context.declare_var(name.as_str(), value.clone());
        }
        template.evaluate(&context).map(Value::from).map_err(|error| error.to_string())
    });
    let concat = |args: FuncArgs| -> Result<Value, String> {
        let lists = (0..args.len()).map(|n| list(&args, n)).collect::<Result<Vec<_>, _>>()?;
        Ok(Value::Array(lists.into_iter().flatten().cloned().collect()))
    };
    context.declare_func("concat", FuncDef::builder().variadic_param(ParamType::Any).build(concat));
    context
}

fn text(args: &FuncArgs, n: usize) -> Result<&str, String> {
    args.get(n).and_then(Value::as_str).ok_or_else(|| format!("argument {n} is no text"))
}

fn list(args: &FuncArgs, n: usize) -> Result<&Vec<Value>, String> {
    args.get(n).and_then(Value::as_array).ok_or_else(|| format!("argument {n} is no list"))
}

fn flat(value: &Value) -> Vec<Value> {
    value.as_array().map_or_else(|| vec![value.clone()], |inner| inner.iter().flat_map(flat).collect())
}
