package conformance

import (
	"fmt"
	"strings"
	"testing"
)

// search.html#string
func TestSearchString(t *testing.T) {
	s := start(t)
	s.load(
		`{"resourceType":"Patient","id":"eve","name":[{"family":"Chalmers","given":["Eve"],"text":"Dr. Eve Chalmers","prefix":["Dr."],"suffix":["MD"]}],"address":[{"use":"home","line":["Unit 3","12 Main St"],"city":"Ann Arbor","state":"MI","postalCode":"48104","country":"US"}]}`,
		`{"resourceType":"Patient","id":"evelyn","name":[{"family":"chalmerson","given":["Peter","Evelyn"]}]}`,
		`{"resourceType":"Patient","id":"severine","name":[{"family":"Müller","given":["Séverine"]},{"use":"maiden","family":"Chal"}]}`,
		`{"resourceType":"Patient","id":"upper","name":[{"family":"MULLER","given":["EVE"]}]}`,
		`{"resourceType":"Patient","id":"comma","name":[{"family":"Smith, Jones","given":["100%","_under"]}]}`,
		`{"resourceType":"Patient","id":"slash","name":[{"family":"back\\slash|pipe$dollar"}]}`,
		`{"resourceType":"Patient","id":"spaces","name":[{"family":"van  der\tBerg"}]}`,
		`{"resourceType":"Patient","id":"none"}`,
		`{"resourceType":"Patient","id":"absent","name":[{"_family":{"extension":[{"url":"http://hl7.org/fhir/StructureDefinition/data-absent-reason","valueCode":"unknown"}]}}]}`,
		`{"resourceType":"Patient","id":"han","name":[{"family":"山田","given":["太郎"]}]}`,
	)
	s.searches(t, "Patient", []searchCase{
		{"#string: equals or starts with, case-insensitive", "given=eve", "eve evelyn upper"},
		{"#string: equals or starts with, case-insensitive", "given=EVE", "eve evelyn upper"},
		{"#string: any repetition", "given=evel", "evelyn"},
		{"#string: starts with, not somewhere inside", "given=verine", ""},
		{"#string: accent-insensitive, the stored value", "family=muller", "severine upper"},
		{"#string: accent-insensitive, the value asked for", "family=Müller", "severine upper"},
		{"#string: :contains is anywhere, case- and accent-insensitive", "given:contains=eve", "eve evelyn severine upper"},
		{"#string: :contains", "family:contains=ALMERS", "eve evelyn"},
		{"#string: :contains of two letters", "family:contains=rs", "eve evelyn"},
		{"#string: :contains of one letter", "family:contains=ü", "severine upper"},
		{"#string: :exact is the whole, with case and accents", "given:exact=Eve", "eve"},
		{"#string: :exact", "given:exact=eve", ""},
		{"#string: :exact", "given:exact=Ev", ""},
		{"#string: :exact", "given:exact=Severine", ""},
		{"#string: :exact", "given:exact=Séverine", "severine"},
		{"#combining: comma is OR", "given:exact=Eve,EVE", "eve upper"},
		{"#combining: repetition is AND", "given=peter&given=evelyn", "evelyn"},
		{"#combining: AND of OR", "family=chalmers,mull&given=eve", "eve evelyn upper"},
		{"#string: other scripts", "family=山", "han"},
		{"#string: HumanName covers all its string parts", "name=md", "eve"},
		{"#string: HumanName covers all its string parts", "name=dr. eve", "eve"},
		{"#string: HumanName covers all its string parts", "name=chal", "eve evelyn severine"},
		{"#string: HumanName, not the use", "name=maiden", ""},
		{"#string: Address covers all its string parts", "address=48104", "eve"},
		{"#string: Address covers all its string parts", "address=unit", "eve"},
		{"#string: Address, not the use", "address=home", ""},
		{"#string: runs of white space are not significant", "family=van der berg", "spaces"},
		{"#escaping: a comma", `family=smith\, jones`, "comma"},
		{"#escaping: a comma that is not escaped is OR", `family=smith,mull`, "comma severine upper"},
		{"#escaping: backslash, pipe, dollar", `family=back\\slash\|pipe\$dollar`, "slash"},
		{"#escaping: pipe and dollar mean nothing in a string", `family=back\\slash|pipe$dollar`, "slash"},
		{"#escaping: a backslash before anything else is illegal", `family=back\slash`, "400 family backslash"},
		{"#escaping: a backslash at the end is illegal", `family=back\`, "400 family backslash"},
		{"#escaping: :exact", `family:exact=Smith\, Jones`, "comma"},
		{"#string: wildcards of databases mean nothing", "given=100%", "comma"},
		{"#string: wildcards of databases mean nothing", "given=%", ""},
		{"#string: wildcards of databases mean nothing", "given=_", ""},
		{"#string: wildcards of databases mean nothing", "given:contains=_", ""},
		{"#string: punctuation is not compared", "given=_under", "comma"},
		{"#string: punctuation is not compared", "given=under", "comma"},
		{"#string: wildcards of databases mean nothing", "given:contains=.*", ""},
		{"#modifiers: :missing=true", "family:missing=true", "absent none"},
		{"#modifiers: :missing=false", "name:missing=false", "comma eve evelyn han severine slash spaces upper"},
		{"#modifiers: :missing beside a value", "family=chal&given:missing=false", "eve evelyn severine"},
		{"#modifiers: what is neither true nor false", "family:missing=maybe", "400 family:missing true false maybe"},
		{"#modifiers: of another type", "family:below=x", "400 family:below :below string"},
		{"#modifiers: of another type", "family:text=x", "400 family:text :text string"},
		{"#modifiers: unknown", "family:starts=x", "400 family:starts :starts"},
		{"#prefix: strings have none", "family=gtchalmers", ""},
		{"contract, Design: a parameter without a value is ignored", "family=", "absent comma eve evelyn han none severine slash spaces upper"},
		{"contract, Design: a parameter without a value is ignored beside others", "family=&given=evel", "evelyn"},
		{"contract, Design: a repetition without a value is ignored", "given=&given=evel", "evelyn"},
		{"#string: any word of a family", "family=berg", "spaces"},
		{"#string: any word of a family", "family=jones", "comma"},
		{"#string: punctuation and white space make no difference", "family=vanderberg", "spaces"},
		{"#string: punctuation and white space make no difference", "family=van-der Berg", "spaces"},
		{"#string: a word from its start only", "family=erg", ""},
		{"#string: :contains without punctuation", "family:contains=hj", "comma"},
		{"#combining: nothing between two commas", "family=a,,b", "400 family"},
	})
}

// search.html#string: "a field matches a string query if the value of the field equals or
// starts with the supplied parameter value, after both have been normalized by case and
// combining characters"; punctuation and white space make no difference. Servers should
// search the parts of a family name independently: names alone are found by their words.
func TestSearchStringWords(t *testing.T) {
	s := start(t)
	s.load(
		`{"resourceType":"Patient","id":"york","address":[{"line":["1 Oak Street"],"city":"New York","postalCode":"02115","country":"US"}],"name":[{"family":"St. John","given":["Mary-Ann"]}]}`,
		`{"resourceType":"Patient","id":"newark","address":[{"city":"Newark"}],"name":[{"family":"stjohn","given":["maryann"],"text":"Sister Maryann"}]}`,
		`{"resourceType":"Patient","id":"sanjose","address":[{"city":"St. John's"}],"name":[{"family":"St-John","given":["Mary Ann"],"prefix":["Prof. Dr."]}]}`,
		`{"resourceType":"Patient","id":"signs","address":[{"city":"--"}],"name":[{"family":"-","given":["- -"]}]}`,
		`{"resourceType":"Patient","id":"quinones","name":[{"family":"Carreño Quinones"}],"contact":[{"name":{"family":"de la Cruz"},"address":{"city":"New Haven"}}]}`,
		`{"resourceType":"Organization","id":"general","name":"General Hospital","alias":["St. John, The"],"address":[{"city":"West-Berlin"}]}`,
		`{"resourceType":"Observation","id":"o","status":"final","code":{"text":"x"},"subject":{"reference":"Patient/quinones"}}`,
	)
	s.searches(t, "Patient", []searchCase{
		{"a city by its start only", "address-city=york", ""},
		{"a city by its start only", "address-city=new", "newark york"},
		{"a city by its start", "address-city=new york", "york"},
		{"a city by its start", "address-city=newyork", "york"},
		{"white space makes no difference", "address-city=NEW-Y", "york"},
		{"an address by the start of its parts", "address=york", ""},
		{"an address by the start of its parts", "address=1 oak", "york"},
		{"an address by the start of its parts", "address=oak", ""},
		{":contains finds what is further on", "address-city:contains=york", "york"},
		{":contains over white space", "address-city:contains=w-y", "york"},
		{":contains of an address", "address:contains=oakst", "york"},
		{"punctuation, asked for", "family=St. John", "newark sanjose york"},
		{"punctuation, left out", "family=st john", "newark sanjose york"},
		{"white space, left out", "family=stjohn", "newark sanjose york"},
		{"a word of a family", "family=john", "sanjose york"},
		{"a hyphen", "given=Mary-Ann", "newark sanjose york"},
		{"joined", "given=maryann", "newark sanjose york"},
		{"apart", "given=mary ann", "newark sanjose york"},
		{"a word of a given name", "given=ann", "sanjose york"},
		{"a word of a family", "family=quinones", "quinones"},
		{"a word of a family, by name", "name=quinones", "quinones"},
		{"words from one on", "name=quin,john", "quinones sanjose york"},
		{"a word of the text of a name", "name=maryann", "newark sanjose york"},
		{"a word of a prefix", "name=dr", "sanjose"},
		{"not from within a word", "name=ohn", ""},
		{":contains in a name", "name:contains=tjo", "newark sanjose york"},
		{":exact is with punctuation", "family:exact=St. John", "york"},
		{"nothing but punctuation is as it is", "family=-", "signs"},
		{"nothing but punctuation is as it is", "address-city=-", "signs"},
		{"nothing but punctuation is as it is", "address-city=--", "signs"},
		{"nothing but punctuation is as it is", "address-city=---", ""},
		{"nothing but punctuation is as it is", "address-city=.", ""},
		{"nothing but punctuation is as it is", "given:contains=-", "signs"},
		{"nothing but punctuation is no wildcard", "family=.", ""},
		{"_filter: eq is the whole", `_filter=address-city eq "newyork"`, "york"},
		{"_filter: eq is the whole", `_filter=address-city eq "New-York"`, "york"},
		{"_filter: eq is the whole", `_filter=address-city eq "new"`, ""},
		{"_filter: eq is not a word", `_filter=family eq "john"`, ""},
		{"_filter: eq without punctuation", `_filter=family eq "st. john"`, "newark sanjose york"},
		{"_filter: ne", `_filter=family ne "ST JOHN"`, "quinones signs"},
		{"_filter: co", `_filter=given co "y-a"`, "newark sanjose york"},
		{"_filter: sw", `_filter=address-city sw "New Y"`, "york"},
		{"_filter: sw is not a word", `_filter=family sw "john"`, ""},
		{"_filter: ew", `_filter=given ew "ry ann"`, "newark sanjose york"},
		{"_filter: nothing but punctuation", `_filter=family eq "-"`, "signs"},
		{"_filter: nothing but punctuation", `_filter=family ne "."`, "newark quinones sanjose signs york"},
		{"reverse chaining", "_has:Observation:patient:_id=o&name=quinones", "quinones"},
	})
	s.searches(t, "Organization", []searchCase{
		{"a name that is no HumanName by its start only", "name=hospital", ""},
		{"a name that is no HumanName by its start only", "name=general-h", "general"},
		{"an alias", "name=st john the", "general"},
		{"an alias", "name=john", ""},
		{":contains", "name:contains=hospital", "general"},
		{"a city", "address-city=westb", "general"},
		{"a city", "address-city=berlin", ""},
	})
	s.searches(t, "Observation", []searchCase{
		{"chained, a word of a family", "patient.family=quinones", "o"},
		{"chained, a word of a name", "subject:Patient.name=quinones", "o"},
		{"chained, :contains", "patient.name:contains=ñoq", "o"},
	})
	t.Run("two types in one search have the words of one of them", func(t *testing.T) {
		s := s.in(t)
		for query, want := range map[string]string{"name=john": "sanjose york", "name=stjohn": "general newark sanjose york", "address-city=berlin": ""} {
			if got := strings.Join(s.get("/?_type=Patient,Organization&"+strings.ReplaceAll(query, " ", "+")).want(200).matches(), " "); got != want {
				t.Errorf("%s finds %q, want %q", query, got, want)
			}
		}
	})
	t.Run("a parameter of names that arrived at run time has words, one of other strings has none", func(t *testing.T) {
		s := s.in(t)
		s.put("/SearchParameter/kin", parameter("kin", "kin", "string", "Patient", "Patient.contact.name.family")).want(201)
		s.put("/SearchParameter/kin-city", parameter("kin-city", "kin-city", "string", "Patient", "Patient.contact.address.city")).want(201)
		s.indexed("/Patient?kin=cruz")
		s.indexed("/Patient?kin-city=newh")
		for query, want := range map[string]string{"kin=cruz": "quinones", "kin=dela": "quinones", "kin=ruz": "", "kin-city=haven": "", "kin-city=newh": "quinones"} {
			if got := strings.Join(s.get("/Patient?"+strings.ReplaceAll(query, " ", "+")).want(200).matches(), " "); got != want {
				t.Errorf("%s finds %q, want %q", query, got, want)
			}
		}
	})
	t.Run("#sort: the order is that of what is compared", func(t *testing.T) {
		s := s.in(t)
		for by, want := range map[string]string{
			"address-city,_id":  "[signs newark york sanjose quinones]", // --, newark, newyork, stjohns, none
			"-address-city,_id": "[sanjose york newark signs quinones]",
			"family,_id":        "[signs quinones newark sanjose york]", // -, carreno…, stjohn three times
		} {
			var got []string
			for url := "/Patient?_count=2&_sort=" + by; url != ""; { // over the cursors
				page := s.get(url).want(200)
				got = append(got, page.ids()...)
				url = strings.TrimPrefix(page.link("next"), s.base)
			}
			if fmt.Sprint(got) != want {
				t.Errorf("_sort=%s gives %s, want %s", by, got, want)
			}
		}
	})
}
