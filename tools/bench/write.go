package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/tidwall/gjson"
)

var importWorkload = Workload{
	Name:   "import",
	About:  "Synthea transaction bundles, posted by so many uploaders",
	Finite: true,
	Writes: true,
	Prepare: func(ctx context.Context, b *Bench) (Task, error) {
		bundles, err := b.Corpus.Load(ctx)
		if err != nil {
			return Task{}, err
		}
		// The longest first, so that no uploader is left with one at the end.
		slices.SortStableFunc(bundles, func(x, y Bundle) int { return len(y.JSON) - len(x.JSON) })
		var taken atomic.Int64
		return Task{Op: func(_ context.Context, w *Worker) error {
			i := int(taken.Add(1)) - 1
			if i >= len(bundles) {
				return io.EOF
			}
			if w.Do("bundle", Request{Method: "POST", Path: "", Body: bundles[i].JSON, Minimal: true}) {
				w.Moved(bundles[i].Entries)
			}
			return nil
		}}, nil
	},
}

var transactionWorkload = Workload{
	Name:   "tx2",
	About:  "transactions of a Patient and an Observation that refers to it by urn:uuid",
	Writes: true,
	Prepare: func(context.Context, *Bench) (Task, error) {
		return Task{Op: func(_ context.Context, w *Worker) error {
			urn := fmt.Sprintf("urn:uuid:%08x-0000-4000-8000-%012x", w.Rand.Uint32(), w.Rand.Uint64()>>16)
			body := fmt.Sprintf(`{"resourceType":"Bundle","type":"transaction","entry":[`+
				`{"fullUrl":"%s","resource":%s,"request":{"method":"POST","url":"Patient"}},`+
				`{"fullUrl":"urn:uuid:%08x-0000-4000-8000-%012x","resource":%s,"request":{"method":"POST","url":"Observation"}}]}`,
				urn, fill(patientJSON, w, nil), w.Rand.Uint32(), w.Rand.Uint64()>>16, fill(observationJSON, w, map[string]string{"Patient": urn}))
			if w.Do("transaction", Request{Method: "POST", Path: "", Body: []byte(body), Minimal: true}) {
				w.Moved(2)
			}
			return nil
		}}, nil
	},
}

// The nine resources of the cycle, in an order in which each refers only to
// those before it. {Type} is a reference to the one of that type, {n} a number
// that differs, {word} a word.
var cycleTypes = []struct{ typ, json string }{
	{"Patient", patientJSON},
	{"Location", `{"resourceType":"Location","status":"active","name":"Ward {word}","mode":"instance","type":[{"coding":[{"system":"http://terminology.hl7.org/CodeSystem/v3-RoleCode","code":"HOSP"}]}],"telecom":[{"system":"phone","value":"555-{n}"}],"address":{"line":["{n} Main Street"],"city":"Boston","state":"MA","postalCode":"02115","country":"US"},"position":{"longitude":-71.1,"latitude":42.3}}`},
	{"Organization", `{"resourceType":"Organization","identifier":[{"system":"urn:bench:organization","value":"o{n}"}],"active":true,"type":[{"coding":[{"system":"http://terminology.hl7.org/CodeSystem/organization-type","code":"prov","display":"Healthcare Provider"}],"text":"Healthcare Provider"}],"name":"Hospital {word}","telecom":[{"system":"phone","value":"555-{n}"}],"address":[{"line":["{n} Elm Street"],"city":"Boston","state":"MA","postalCode":"02115","country":"US"}]}`},
	{"Practitioner", `{"resourceType":"Practitioner","identifier":[{"system":"http://hl7.org/fhir/sid/us-npi","value":"{n}"}],"active":true,"name":[{"family":"{word}","given":["Doctor"],"prefix":["Dr."]}],"telecom":[{"system":"email","value":"d{n}@example.com","use":"work"}],"gender":"female"}`},
	{"Encounter", `{"resourceType":"Encounter","identifier":[{"system":"urn:bench:encounter","value":"e{n}"}],"status":"finished","class":{"system":"http://terminology.hl7.org/CodeSystem/v3-ActCode","code":"AMB"},"type":[{"coding":[{"system":"http://snomed.info/sct","code":"185349003","display":"Encounter for check up (procedure)"}],"text":"Encounter for check up (procedure)"}],"subject":{"reference":"{Patient}"},"participant":[{"individual":{"reference":"{Practitioner}"}}],"period":{"start":"2019-05-17T10:30:00+01:00","end":"2019-05-17T11:00:00+01:00"},"location":[{"location":{"reference":"{Location}"}}],"serviceProvider":{"reference":"{Organization}"}}`},
	{"Observation", observationJSON},
	{"MedicationRequest", `{"resourceType":"MedicationRequest","identifier":[{"system":"urn:bench:prescription","value":"m{n}"}],"status":"active","intent":"order","medicationCodeableConcept":{"coding":[{"system":"http://www.nlm.nih.gov/research/umls/rxnorm","code":"2001499","display":"Vitamin B 12 5 MG/ML Injectable Solution"}],"text":"Vitamin B 12 5 MG/ML Injectable Solution"},"subject":{"reference":"{Patient}"},"encounter":{"reference":"{Encounter}"},"authoredOn":"2019-05-17T10:45:00+01:00","requester":{"reference":"{Practitioner}"},"dosageInstruction":[{"sequence":1,"text":"one a day","asNeededBoolean":false,"timing":{"repeat":{"frequency":1,"period":1.0,"periodUnit":"d"}}}]}`},
	{"Claim", `{"resourceType":"Claim","identifier":[{"system":"urn:bench:claim","value":"c{n}"}],"status":"active","type":{"coding":[{"system":"http://terminology.hl7.org/CodeSystem/claim-type","code":"institutional"}]},"use":"claim","patient":{"reference":"{Patient}"},"billablePeriod":{"start":"2019-05-17T10:30:00+01:00","end":"2019-05-17T11:00:00+01:00"},"created":"2019-05-17T11:00:00+01:00","provider":{"reference":"{Organization}"},"priority":{"coding":[{"system":"http://terminology.hl7.org/CodeSystem/processpriority","code":"normal"}]},"prescription":{"reference":"{MedicationRequest}"},"insurance":[{"sequence":1,"focal":true,"coverage":{"display":"private"}}],"item":[{"sequence":1,"productOrService":{"coding":[{"system":"http://snomed.info/sct","code":"185349003","display":"Encounter for check up (procedure)"}]},"encounter":[{"reference":"{Encounter}"}]}],"total":{"value":129.16,"currency":"USD"}}`},
	{"ExplanationOfBenefit", `{"resourceType":"ExplanationOfBenefit","identifier":[{"system":"urn:bench:benefit","value":"b{n}"}],"status":"active","type":{"coding":[{"system":"http://terminology.hl7.org/CodeSystem/claim-type","code":"institutional"}]},"use":"claim","patient":{"reference":"{Patient}"},"billablePeriod":{"start":"2019-05-17T10:30:00+01:00","end":"2020-05-17T11:00:00+01:00"},"created":"2019-05-17T11:00:00+01:00","insurer":{"reference":"{Organization}"},"provider":{"reference":"{Practitioner}"},"claim":{"reference":"{Claim}"},"outcome":"complete","insurance":[{"focal":true,"coverage":{"display":"private"}}],"item":[{"sequence":1,"productOrService":{"coding":[{"system":"http://snomed.info/sct","code":"185349003"}]},"servicedPeriod":{"start":"2019-05-17T10:30:00+01:00","end":"2019-05-17T11:00:00+01:00"},"encounter":[{"reference":"{Encounter}"}]}],"total":[{"category":{"coding":[{"system":"http://terminology.hl7.org/CodeSystem/adjudication","code":"submitted"}]},"amount":{"value":129.16,"currency":"USD"}}],"payment":{"amount":{"value":100.0,"currency":"USD"}}}`},
}

const (
	patientJSON     = `{"resourceType":"Patient","identifier":[{"use":"usual","type":{"coding":[{"system":"http://terminology.hl7.org/CodeSystem/v2-0203","code":"MR","display":"Medical Record Number"}],"text":"Medical Record Number"},"system":"urn:bench:patient","value":"p{n}"}],"active":true,"name":[{"use":"official","family":"{word}","given":["Peter","James"]}],"telecom":[{"system":"phone","value":"555-{n}","use":"home"}],"gender":"male","birthDate":"1974-12-25","address":[{"use":"home","line":["{n} Oak Street"],"city":"Boston","state":"MA","postalCode":"02115","country":"US"}],"maritalStatus":{"coding":[{"system":"http://terminology.hl7.org/CodeSystem/v3-MaritalStatus","code":"M","display":"Married"}]}}`
	observationJSON = `{"resourceType":"Observation","status":"final","category":[{"coding":[{"system":"http://terminology.hl7.org/CodeSystem/observation-category","code":"vital-signs","display":"vital-signs"}]}],"code":{"coding":[{"system":"http://loinc.org","code":"8302-2","display":"Body Height"}],"text":"Body Height"},"subject":{"reference":"{Patient}"},"effectiveDateTime":"2019-05-17T10:30:00+01:00","issued":"2019-05-17T10:30:00.157+01:00","valueQuantity":{"value":{n}.5,"unit":"cm","system":"http://unitsofmeasure.org","code":"cm"}}`
)

var words = strings.Fields("Alder Birch Cedar Dogwood Elder Fir Gum Hazel Ivy Juniper Kauri Linden Maple Nutmeg Oak Pine Quince Rowan Spruce Teak Upas Viburnum Willow Yew Zelkova")

// fill makes a resource of a template; references are by type.
func fill(template string, w *Worker, references map[string]string) []byte {
	pairs := []string{"{n}", fmt.Sprint(100000 + w.Rand.IntN(900000)), "{word}", pick(w.Rand, words)}
	for typ, to := range references {
		pairs = append(pairs, "{"+typ+"}", to)
	}
	return []byte(strings.NewReplacer(pairs...).Replace(template))
}

var crudWorkload = Workload{
	Name:   "crud",
	About:  "create, GET, PUT and DELETE of nine resources that refer to each other: 36 requests a cycle",
	Writes: true,
	Prepare: func(context.Context, *Bench) (Task, error) {
		return Task{Op: cycle}, nil
	},
}

// cycle is the 36 steps. It gives up the cycle, not the run, when a create is
// refused.
func cycle(_ context.Context, w *Worker) error {
	references := map[string]string{}
	bodies := make([][]byte, len(cycleTypes))
	ids := make([]string, len(cycleTypes))
	for i, t := range cycleTypes {
		bodies[i] = fill(t.json, w, references)
		if !w.Do("create", Request{Method: "POST", Path: t.typ, Body: bodies[i]}) {
			return nil
		}
		id, ok := idFrom(w.X().Location, t.typ)
		if !ok {
			id = gjson.GetBytes(w.X().Body, "id").Str
		}
		ids[i] = id
		references[t.typ] = t.typ + "/" + id
	}
	for i, t := range cycleTypes {
		w.Do("read", Request{Method: "GET", Path: t.typ + "/" + ids[i]})
	}
	for i, t := range cycleTypes {
		begin := []byte(`{"resourceType":"` + t.typ + `",`)
		body := append([]byte(`{"resourceType":"`+t.typ+`","id":"`+ids[i]+`","language":"en",`), bytes.TrimPrefix(bodies[i], begin)...)
		w.Do("update", Request{Method: "PUT", Path: t.typ + "/" + ids[i], Body: body})
	}
	// Backwards: nothing is deleted while something refers to it.
	for i := len(cycleTypes) - 1; i >= 0; i-- {
		w.Do("delete", Request{Method: "DELETE", Path: cycleTypes[i].typ + "/" + ids[i]})
	}
	w.Moved(len(cycleTypes))
	return nil
}

// stormKeys is how many identifiers all clients of the storm fight for.
const stormKeys = 64

var stormWorkload = Workload{
	Name:  "conditional-storm",
	About: "conditional creates of the same few patients from all clients; afterwards each exists once",
	Prepare: func(context.Context, *Bench) (Task, error) {
		run := strconv.FormatInt(time.Now().UnixNano(), 36)
		return Task{
			Op: func(_ context.Context, w *Worker) error {
				value := fmt.Sprintf("%s-%d", run, w.Rand.IntN(stormKeys))
				body := bytes.Replace(fill(patientJSON, w, nil), []byte(`"identifier":[`),
					[]byte(`"identifier":[{"system":"urn:bench:storm","value":"`+value+`"},`), 1)
				w.Do("create", Request{Method: "POST", Path: "Patient", Body: body, IfNoneExist: "identifier=urn:bench:storm|" + value, Minimal: true})
				return nil
			},
			Check: func(_ context.Context, b *Bench) error {
				x := b.Client.NewExchange()
				for i := range stormKeys {
					path := fmt.Sprintf("Patient?identifier=urn:bench:storm%%7C%s-%d&_summary=count", run, i)
					if err := x.Do(Request{Method: "GET", Path: path}); err != nil {
						return err
					}
					if total := gjson.GetBytes(x.Body, "total").Int(); total > 1 {
						return fmt.Errorf("%d patients with the identifier %s-%d: conditional create is not race-free", total, run, i)
					}
				}
				return nil
			},
		}, nil
	},
}
