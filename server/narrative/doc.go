// Package narrative checks the XHTML of Narrative.div: R4's rules txt-1 and txt-2.
// server/validate asks it of every narrative, server/fhirpath for htmlChecks(). It
// reads the text in one pass and builds no document.
//
// Spec: https://hl7.org/fhir/R4/narrative.html#xhtml.
package narrative
