// The create of an Observation that passes the filter.
async (context) => {
  await fhir.patch("Observation", context.resourceId, [
    { op: "add", path: "/interpretation", value: [{ coding: [{ system: "http://terminology.hl7.org/CodeSystem/v3-ObservationInterpretation", code: "H" }] }] },
  ]);
  console.log("flagged", context.resourceId);
}
