//! What the documents say, word by word, and that the module says the same.

use serde_json::{Value, json};

use crate::module::{attribute, blocks, evaluate, file, folder, label};
use crate::stand::{OWN, document, rendered};

const ROLES: [&str; 2] = ["region-host", "region-remote-host"];

/// Inputs of one region with what a test adds to them.
fn inputs(role: &str, more: Value) -> Value {
    let mut all = json!({
        "role": role,
        "region": "eu",
        "data_bucket_arn": "arn:aws:s3:::eu-data",
        "data_bucket_region": "eu-central-1",
        "trust_anchor_arn": if role == "region-remote-host" { "arn:aws:rolesanywhere:x" } else { "" },
    });
    let (fields, Value::Object(more)) = (all.as_object_mut().expect("an object"), more) else { panic!("an object") };
    fields.extend(more);
    all
}

/// The whole policy of a box whose region moves nothing: its own bucket and nothing else.
fn own() -> Vec<Value> {
    let prefixes = ["arn:aws:s3:::eu-data/instances/*", "arn:aws:s3:::eu-data/moves/*"];
    vec![
        json!({ "Sid": "OwnBucket", "Effect": "Allow", "Action": ["s3:ListBucket", "s3:GetBucketVersioning"],
                "Resource": "arn:aws:s3:::eu-data" }),
        json!({ "Sid": "OwnObjects", "Effect": "Allow",
                "Action": ["s3:GetObject", "s3:GetObjectTagging", "s3:PutObject", "s3:DeleteObject",
                           "s3:AbortMultipartUpload"],
                "Resource": prefixes }),
    ]
}

/// What one sibling adds.
fn sibling(n: usize, bucket: &str) -> Vec<Value> {
    vec![
        json!({ "Sid": format!("Sibling{n}Staging"), "Effect": "Allow", "Action": ["s3:PutObject", "s3:DeleteObject"],
                "Resource": format!("arn:aws:s3:::{bucket}/moves/*") }),
        json!({ "Sid": format!("Sibling{n}List"), "Effect": "Allow", "Action": "s3:ListBucket",
                "Resource": format!("arn:aws:s3:::{bucket}"),
                "Condition": { "StringLike": { "s3:prefix": "moves/*" } } }),
    ]
}

fn policy(statements: &[Value]) -> Value {
    json!({ "Version": "2012-10-17", "Statement": statements })
}

#[test]
fn without_siblings_a_policy_names_its_own_bucket_alone() {
    for role in ROLES {
        let by_default = evaluate(&inputs(role, json!({})));
        assert_eq!(by_default.policy, policy(&own()), "{role}");
        assert_eq!(by_default.refusals, [""; 0], "{role}");
        assert_eq!(evaluate(&inputs(role, json!({ "sibling_staging_arns": [] }))).policy, by_default.policy, "{role}");
    }
}

#[test]
fn a_sibling_adds_put_and_delete_of_its_staging_and_the_list_of_it() {
    for role in ROLES {
        let arns = ["arn:aws:s3:::uk-data/moves/*", "arn:aws:s3:::us-data/moves/*"];
        let one = evaluate(&inputs(role, json!({ "sibling_staging_arns": arns[..1] })));
        assert_eq!(one.policy, policy(&[own(), sibling(0, "uk-data")].concat()), "{role}");
        let two = evaluate(&inputs(role, json!({ "sibling_staging_arns": arns })));
        assert_eq!(two.policy, policy(&[own(), sibling(0, "uk-data"), sibling(1, "us-data")].concat()), "{role}");
        assert_eq!((one.refusals, two.refusals), (vec![], vec![]), "{role}");
    }
}

#[test]
fn a_versioned_bucket_and_keys_add_what_only_they_need() {
    for role in ROLES {
        let key = "arn:aws:kms:eu-central-1:1:key/a";
        let whole = evaluate(&inputs(role, json!({ "versioned": true, "kms_key_arns": [key] }))).policy;
        let versions = [
            json!({ "Sid": "OwnVersions", "Effect": "Allow", "Action": "s3:ListBucketVersions",
                    "Resource": "arn:aws:s3:::eu-data" }),
            json!({ "Sid": "OwnOldVersions", "Effect": "Allow", "Action": "s3:DeleteObjectVersion",
                    "Resource": own()[1]["Resource"] }),
        ];
        let keys = [json!({ "Sid": "OwnKey0", "Effect": "Allow", "Action": ["kms:Decrypt", "kms:GenerateDataKey"],
                "Resource": key,
                "Condition": { "StringEquals": { "kms:ViaService": "s3.eu-central-1.amazonaws.com" } } })];
        assert_eq!(whole, policy(&[&own()[..], &versions, &keys].concat()), "{role}");
    }
}

/// Whoever works without Terraform fills the same documents by hand: no other way leads to other rights.
#[test]
fn the_module_says_what_the_json_documents_say() {
    let more = json!({ "versioned": true, "kms_key_arns": ["arn:aws:kms:eu-central-1:1:key/a"],
                       "sibling_staging_arns": ["arn:aws:s3:::uk-data/moves/*"] });
    let key = [("n", "0"), ("kms_key_arn", "arn:aws:kms:eu-central-1:1:key/a"), ("data_bucket_region", "eu-central-1")];
    let staging = [
        ("n", "0"),
        ("sibling_staging_arn", "arn:aws:s3:::uk-data/moves/*"),
        ("sibling_bucket_arn", "arn:aws:s3:::uk-data"),
    ];
    let by_hand = document(&[
        rendered("policies/own.json", &OWN),
        rendered("policies/versions.json", &OWN),
        rendered("policies/key.json", &key),
        rendered("policies/sibling.json", &staging),
    ]);
    for role in ROLES {
        let found = evaluate(&inputs(role, more.clone()));
        assert_eq!(found.policy, by_hand, "{role}");
        let trust = [("region", "eu"), ("trust_anchor_arn", "arn:aws:rolesanywhere:x")];
        assert_eq!(found.trust, rendered(&format!("trust/{role}.json"), &trust), "{role}");
    }
    // Every document is one of those.
    let files = std::fs::read_dir(folder().join("policies")).expect("policies");
    let mut names: Vec<_> = files.map(|entry| entry.expect("an entry").file_name()).collect();
    names.sort();
    assert_eq!(names, ["key.json", "own.json", "sibling.json", "versions.json"]);
}

/// The two roles may do the same, and who may take them differs.
#[test]
fn a_box_outside_of_aws_is_trusted_by_its_regions_certificates_alone() {
    let [host, remote] = ROLES.map(|role| evaluate(&inputs(role, json!({}))).trust["Statement"][0].clone());
    assert_eq!(host["Principal"], json!({ "Service": "ec2.amazonaws.com" }));
    assert_eq!(remote["Principal"], json!({ "Service": "rolesanywhere.amazonaws.com" }));
    assert_eq!(
        remote["Condition"],
        json!({ "ArnEquals": { "aws:SourceArn": "arn:aws:rolesanywhere:x" },
                "StringEquals": { "aws:PrincipalTag/x509Subject/OU": "eu" } })
    );
}

#[test]
fn the_roles_policy_is_that_document_and_no_other_is_attached() {
    let role = file("role.tf");
    let mut resources: Vec<_> = blocks(&role, "resource").map(label).collect();
    resources.sort_unstable();
    assert_eq!(resources, ["aws_iam_instance_profile", "aws_iam_role", "aws_iam_role_policy"]);
    let of = |kind: &str, name: &str| {
        let block = blocks(&role, "resource").find(|block| label(block) == kind).expect("a resource");
        attribute(block, name).map(|expression| hcl::format::to_string(expression).expect("an expression"))
    };
    assert_eq!(of("aws_iam_role_policy", "policy").as_deref(), Some("local.policy"));
    assert_eq!(of("aws_iam_role", "assume_role_policy").as_deref(), Some("local.trust"));
    for other in ["managed_policy_arns", "inline_policy"] {
        assert_eq!(of("aws_iam_role", other), None, "{other}");
    }
}

#[test]
fn anything_but_the_staging_of_another_bucket_is_refused_as_a_sibling() {
    for wider in [
        "arn:aws:s3:::uk-data",
        "arn:aws:s3:::uk-data/*",
        "arn:aws:s3:::uk-data/instances/*",
        "arn:aws:s3:::uk-data/instances/moves/*",
        "arn:aws:s3:::uk-data/moves*",
        "arn:aws:s3:::uk-*/moves/*",
        "arn:aws:s3:::*/moves/*",
        "uk-data/moves/*",
        "*",
        "arn:aws:s3:::eu-data/moves/*",
    ] {
        let found = evaluate(&inputs("region-host", json!({ "sibling_staging_arns": [wider] })));
        assert_eq!(found.refusals.len(), 1, "{wider}: {:?}", found.refusals);
    }
    let twice = json!({ "sibling_staging_arns": ["arn:aws:s3:::uk-data/moves/*", "arn:aws:s3:::uk-data/moves/*"] });
    assert_eq!(evaluate(&inputs("region-host", twice)).refusals, ["Each sibling is named once."]);
    let lone = json!({ "trust_anchor_arn": "" });
    assert_eq!(evaluate(&inputs("region-remote-host", lone)).refusals.len(), 1);
}

/// A mover may not abort at its sibling, so what a failed copy left behind goes by the bucket's own rule; so do the
/// versions of what a move deleted.
#[test]
fn the_buckets_rules_clear_what_a_move_leaves_in_the_staging() {
    let rules: Value = rendered("lifecycle.json", &[]);
    let rules = rules["Rules"].as_array().expect("rules");
    let on_staging = |key: &str| {
        rules.iter().any(|rule| {
            rule["Status"] == "Enabled" && rule["Filter"] == json!({ "Prefix": "moves/" }) && rule.get(key).is_some()
        })
    };
    assert!(on_staging("AbortIncompleteMultipartUpload"));
    assert!(on_staging("NoncurrentVersionExpiration"));
    assert!(rules.iter().all(|rule| rule["Filter"] == json!({ "Prefix": "moves/" })), "instances are never expired");
    assert!(rules.iter().all(|rule| rule["Expiration"].get("Days").is_none()), "nothing current is expired");
}
