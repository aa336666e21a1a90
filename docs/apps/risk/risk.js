// POST /Patient/{id}/$risk-score {"parameters": {"smoker": true}}
async (context) => {
  const patient = context.resource;
  if (!patient) throw new OperationOutcomeError(400, "required", "call it on a patient");
  if (!patient.birthDate) throw new OperationOutcomeError(422, "business-rule", "the patient has no birthDate");

  const found = await fhir.search("Observation", {
    subject: "Patient/" + context.resourceId,
    code: "http://loinc.org|8480-6",
    _sort: "-date",
    _count: 1,
  });
  if (!found.entry) throw new OperationOutcomeError(422, "business-rule", "there is no systolic blood pressure (LOINC 8480-6)");
  const pressure = found.entry[0].resource.valueQuantity.value;

  const at = (context.parameters && context.parameters.at) || new Date().toISOString().slice(0, 10);
  const age = Number(at.slice(0, 4)) - Number(patient.birthDate.slice(0, 4));
  const smoker = Boolean(context.parameters && context.parameters.smoker);
  const score = Math.max(0, (age - 40) / 2) + Math.max(0, (pressure - 120) / 5) + (smoker ? 10 : 0);
  console.log("risk of", context.resourceId, "is", score);

  return {
    resourceType: "Parameters",
    parameter: [
      { name: "score", valueDecimal: score },
      { name: "class", valueCode: score >= 20 ? "high" : score >= 10 ? "medium" : "low" },
    ],
  };
}
