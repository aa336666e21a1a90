// Package smart is the scope syntax of SMART App Launch, as pure functions:
// what a scope parameter says, which scope covers which, and how a scope is
// written.
//
//	"patient/Observation.rs?category=laboratory openid launch/patient"
//	  -> Scopes{Resource: [patient, Observation, r+s, category=laboratory], Other: [openid, launch/patient]}
//
// It knows neither clients nor users nor resources: oauth decides who is granted
// what, server/access what a granted scope lets see.
// Spec: https://hl7.org/fhir/smart-app-launch/STU2.2/scopes-and-launch-context.html.
package smart
