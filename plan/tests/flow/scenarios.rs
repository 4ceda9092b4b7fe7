//! Golden scenarios: `tests/scenarios/NN-name/` holds policy.toml and survey.json, and
//! next to them what must come of them, to the byte: plan.json and picture.txt, or
//! refusal.json. `REPAVE_BLESS=1` writes the expected files, `REPAVE_BLESS=inputs`
//! also the inputs that `inputs.rs` describes.
#![expect(
    clippy::disallowed_methods,
    reason = "the crate reads no files; this test reads the scenarios"
)]

use std::fs;
use std::path::{Path, PathBuf};

use repave_plan::essence::approval_digest;
use repave_plan::picture::{WIDTH, picture, plan_json};
use repave_plan::planner::plan;
use repave_plan::refusal::Refusal;
use repave_plan::survey::Survey;

use crate::inputs::{inputs, policy};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/scenarios")
}

/// The files that are expected of one scenario.
fn expected(dir: &Path) -> Vec<(&'static str, String)> {
    let policy = policy(&fs::read_to_string(dir.join("policy.toml")).unwrap());
    let survey = fs::read_to_string(dir.join("survey.json")).unwrap();
    let survey: Survey = serde_json::from_str(&survey).unwrap();
    match plan(&policy, &survey) {
        Ok(plan) => {
            let digest = approval_digest(&plan).unwrap();
            vec![
                ("plan.json", plan_json(&plan, &digest).unwrap() + "\n"),
                ("picture.txt", picture(&plan, &digest)),
            ]
        }
        Err(refusal) => vec![("refusal.json", refusal_text(&refusal))],
    }
}

fn refusal_text(refusal: &Refusal) -> String {
    let value = serde_json::json!({
        "name": refusal.name(),
        "message": refusal.to_string(),
        "way_out": refusal.way_out(),
        "refusal": refusal,
    });
    serde_json::to_string_pretty(&value).unwrap() + "\n"
}

#[test]
fn every_scenario_gives_its_golden_files() {
    let bless = std::env::var("REPAVE_BLESS").unwrap_or_default();
    if bless == "inputs" {
        for input in inputs() {
            let dir = folder().join(input.name);
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join("policy.toml"), input.policy).unwrap();
            let survey = serde_json::to_string_pretty(&input.survey).unwrap() + "\n";
            fs::write(dir.join("survey.json"), survey).unwrap();
        }
    }
    let mut dirs: Vec<PathBuf> = fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_dir())
        .collect();
    dirs.sort();
    assert!(dirs.len() >= inputs().len(), "{} scenarios", dirs.len());
    let mut wrong = Vec::new();
    for dir in dirs {
        let expected = expected(&dir);
        if !bless.is_empty() {
            for name in ["plan.json", "picture.txt", "refusal.json"] {
                let _ = fs::remove_file(dir.join(name));
            }
            for (name, text) in &expected {
                fs::write(dir.join(name), text).unwrap();
            }
        }
        let mut names: Vec<&str> = vec!["policy.toml", "survey.json"];
        for (name, text) in &expected {
            names.push(name);
            if fs::read_to_string(dir.join(name)).ok().as_ref() != Some(text) {
                wrong.push(dir.join(name));
            }
        }
        for entry in fs::read_dir(&dir).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if !names.contains(&name.as_str()) {
                wrong.push(dir.join(name));
            }
        }
    }
    assert_eq!(
        wrong,
        Vec::<PathBuf>::new(),
        "these differ from what is made now"
    );
}

#[test]
fn the_inputs_on_disk_are_the_ones_that_are_described() {
    for input in inputs() {
        let dir = folder().join(input.name);
        let text = fs::read_to_string(dir.join("policy.toml")).unwrap();
        assert_eq!(text, input.policy, "{}", input.name);
        let text = fs::read_to_string(dir.join("survey.json")).unwrap();
        let survey: Survey = serde_json::from_str(&text).unwrap();
        assert_eq!(survey, input.survey, "{}", input.name);
    }
}

#[test]
fn no_picture_is_wider_than_a_page() {
    for entry in fs::read_dir(folder()).unwrap() {
        let path = entry.unwrap().path().join("picture.txt");
        for line in fs::read_to_string(path).unwrap_or_default().lines() {
            assert!(line.chars().count() <= WIDTH, "{line}");
        }
    }
}
