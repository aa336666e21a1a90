package access

// shared are the resource types that belong to no patient: a patient's app reads and
// searches all of them, and writes none. A type that is neither in a patient's compartment
// nor here is out of its reach: a Bundle, a Binary, a MessageHeader or a Linkage may hold
// anybody's data.
// Contract: docs/contract.md, Authorization, Scopes.
var shared = setOf(
	// People and places.
	"Organization", "OrganizationAffiliation", "Practitioner", "PractitionerRole", "Location", "HealthcareService", "Endpoint",
	"InsurancePlan", "Slot",
	// Drugs, substances and devices.
	"Medication", "MedicationKnowledge", "Substance", "SubstanceNucleicAcid", "SubstancePolymer", "SubstanceProtein",
	"SubstanceReferenceInformation", "SubstanceSourceMaterial", "SubstanceSpecification", "MedicinalProduct",
	"MedicinalProductAuthorization", "MedicinalProductContraindication", "MedicinalProductIndication", "MedicinalProductIngredient",
	"MedicinalProductInteraction", "MedicinalProductManufactured", "MedicinalProductPackaged", "MedicinalProductPharmaceutical",
	"MedicinalProductUndesirableEffect", "CatalogEntry",
	// Definitions.
	"ActivityDefinition", "ChargeItemDefinition", "DeviceDefinition", "EventDefinition", "ObservationDefinition", "PlanDefinition",
	"Questionnaire", "SpecimenDefinition", "Measure", "Library", "Evidence", "EvidenceVariable", "EffectEvidenceSynthesis",
	"RiskEvidenceSynthesis", "ResearchDefinition", "ResearchElementDefinition", "ResearchStudy",
	// Conformance and terminology.
	"CapabilityStatement", "CodeSystem", "CompartmentDefinition", "ConceptMap", "ExampleScenario", "GraphDefinition",
	"ImplementationGuide", "MessageDefinition", "NamingSystem", "OperationDefinition", "SearchParameter", "StructureDefinition",
	"StructureMap", "TerminologyCapabilities", "TestScript", "ValueSet",
)

func setOf(names ...string) map[string]bool {
	set := make(map[string]bool, len(names))
	for _, n := range names {
		set[n] = true
	}
	return set
}
