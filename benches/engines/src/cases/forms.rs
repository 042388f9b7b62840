//! What the parts of leasehold's commands cost, each added to the least form.

use anyhow::Result;

use crate::{
    engines::Mongo,
    forms::{Form, FormLocks, plan},
    loops::Loops,
    results::CaseResult,
    rounds::{Plan, compare},
};

pub async fn measure(mongo: &Mongo, plan_of_rounds: Plan) -> Result<CaseResult> {
    let least = Form::default();
    let whole = Form {
        whole: true,
        ..least
    };
    let projection = |form| Form {
        projection: true,
        ..form
    };
    let forms = [
        ("least", least),
        ("least, with a projection", projection(least)),
        ("leasehold's document", whole),
        ("leasehold's document, with a projection", projection(whole)),
        (
            "leasehold's document, released among others",
            Form {
                filter: true,
                ..whole
            },
        ),
    ];
    let collection = mongo.collection("plans");
    let name = collection.name();
    mongo.database.create_collection(name).await?;
    let plans = [
        plan(&mongo.database, name, false).await?,
        plan(&mongo.database, name, true).await?,
    ];
    let about = format!(
        "A free acquire and its release by the bare driver, in several forms. Each key is new. The plan of \
         the first command is {} without a projection and {} with one.",
        plans[0], plans[1]
    );
    let mut result = CaseResult::new("forms", mongo.engine.name(), &about);
    for tasks in [1, 8] {
        let sides: Vec<_> = forms
            .iter()
            .enumerate()
            .map(|(number, (name, form))| {
                let collection = mongo.collection(&format!("form-{number}"));
                Loops::fresh(&FormLocks::shared(name, *form, &collection), tasks).boxed()
            })
            .collect();
        result.add_at(tasks, "tasks", compare(plan_of_rounds, &sides).await?);
    }
    Ok(result)
}
