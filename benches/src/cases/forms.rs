//! The cost of each part of leasehold's commands. Each part is added to the smallest form.

use anyhow::Result;

use super::held::attempts;
use crate::{
    engines::Mongo,
    forms::{Form, FormLocks, Places, plan},
    loops::Loops,
    results::CaseResult,
    rounds::{Plan, compare},
};

pub async fn measure(mongo: &Mongo, plan_of_rounds: Plan) -> Result<CaseResult> {
    let least = Form::default();
    let fields = Form {
        fields: true,
        ..least
    };
    let checks = Form {
        checks: true,
        ..fields
    };
    let cleanup = Form {
        cleanup: true,
        ..checks
    };
    let [any, over] = [Places::Any, Places::Over].map(|places| Form { places, ..cleanup });
    let projection = Form {
        projection: true,
        ..over
    };
    let whole = Form::whole();
    let look = Form {
        look: true,
        ..whole
    };
    let forms = [
        ("least", least),
        ("+ its fields", fields),
        ("+ its conditions", checks),
        ("+ its clean-up date", cleanup),
        ("+ whether there are places", any),
        ("  or whether all places are over", over),
        ("+ a projection", projection),
        ("no projection, released by the primary alone", whole),
        ("no projection, read first", look),
    ];
    let collection = mongo.collection("plans");
    let name = collection.name();
    mongo.database.create_collection(name).await?;
    let plans = [
        plan(&mongo.database, name, false).await?,
        plan(&mongo.database, name, true).await?,
    ];
    let about = format!(
        "An acquire of a new key and its release by the bare driver, each form with one more part \
         of leasehold's document or statement; and attempts on held keys, by 8 tasks. The server's \
         plan of an acquire is {} without a projection and {} with one.",
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
    let locks: Vec<_> = forms
        .iter()
        // An attempt on a held key involves no release, so the forms that differ only in the release are left out.
        .filter(|(_, form)| !form.primary || form.look)
        .map(|(name, form)| FormLocks::shared(name, *form, &mongo.collection("held")))
        .collect();
    attempts(&mut result, plan_of_rounds, &locks).await?;
    Ok(result)
}
