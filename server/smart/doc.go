// Package smart is the scope syntax of SMART App Launch, as pure functions: it parses a
// scope parameter, decides which scope covers which, and writes scopes.
//
//	"patient/Observation.rs?category=laboratory openid launch/patient"
//	  -> Scopes{Resource: [patient, Observation, r+s, category=laboratory], Other: [openid, launch/patient]}
//
// It knows neither clients nor users nor resources. oauth decides on grants, server/access
// on the resources that a granted scope makes visible.
// Spec: https://hl7.org/fhir/smart-app-launch/STU2.2/scopes-and-launch-context.html.
package smart
