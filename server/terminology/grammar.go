package terminology

import (
	"regexp"

	"golang.org/x/text/currency"
	"golang.org/x/text/language"

	"kiln/server/ucum"
)

// grammars are the code systems whose codes follow a rule instead of being
// listed. They can be asked about a code and cannot be enumerated.
// Spec: https://hl7.org/fhir/R4/terminologies-systems.html.
var grammars = map[string]func(code string) bool{
	// Languages. Spec: https://hl7.org/fhir/R4/valueset-all-languages.html.
	"urn:ietf:bcp:47": func(code string) bool {
		_, err := language.Parse(code)
		return err == nil
	},
	// Media types.
	"urn:ietf:bcp:13": mediaType.MatchString,
	// Currencies.
	"urn:iso:std:iso:4217": func(code string) bool {
		_, err := currency.ParseISO(code)
		return err == nil && len(code) == 3 && upper(code)
	},
	// Countries: two letters, three letters or three digits.
	"urn:iso:std:iso:3166": func(code string) bool {
		r, err := language.ParseRegion(code)
		return err == nil && r.IsCountry() && upper(code)
	},
	// Units.
	"http://unitsofmeasure.org": func(code string) bool {
		_, err := ucum.Parse(code)
		return err == nil
	},
}

// mediaType is RFC 6838's type/subtype with parameters. A bare type ("xml",
// "json") is what R4 itself uses in places, and a value with blanks that is not
// quoted (variant=DICOM WADO-RS) stands in an example of HL7.
var mediaType = regexp.MustCompile(`^[A-Za-z0-9!#$&^_.+-]{1,127}(/[A-Za-z0-9!#$&^_.+*-]{1,127})?(\s*;\s*[^\s;=]+=("[^"]*"|[^";]+))*$`)

func upper(code string) bool {
	for i := range len(code) {
		if code[i] >= 'a' && code[i] <= 'z' {
			return false
		}
	}
	return true
}
