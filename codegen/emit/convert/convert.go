package convert

import (
	"kiln/gen/r4"
	"kiln/server/fhir"
)

// Value indexes a value of any datatype under the key k as search type t. FHIRPath expressions of custom
// parameters return such values. A value without a form as t is skipped. Extract indexes the same way.
// Spec: https://hl7.org/fhir/R4/search.html#ptypes.
func Value(x *fhir.Index, t fhir.SearchType, k fhir.Key, e fhir.Element) {
	switch t {
	case fhir.SearchToken:
		tokenOf(x, k, e)
	case fhir.SearchDate:
		dateOf(x, k, e)
	case fhir.SearchNumber:
		numberOf(x, k, e)
	case fhir.SearchQuantity:
		quantityOf(x, k, e)
	case fhir.SearchString:
		stringOf(x, k, e)
	case fhir.SearchReference:
		referenceOf(x, k, e)
	case fhir.SearchURI:
		uriOf(x, k, e)
	}
}

func tokenOf(x *fhir.Index, k fhir.Key, e fhir.Element) {
	switch v := e.(type) {
	case *r4.CodeableConcept:
		tokenCodeableConcept(x, k, v)
	case *r4.Coding:
		tokenCoding(x, k, v)
	case *r4.Identifier:
		tokenIdentifier(x, k, v)
	case *r4.ContactPoint:
		tokenContactPoint(x, k, v)
	case *fhir.Extension:
		tokenExtension(x, k, v)
	case *fhir.Code, *fhir.Boolean, *fhir.String, *fhir.Markdown, *fhir.ID, *fhir.URI, *fhir.URL, *fhir.OID, *fhir.UUID,
		*fhir.Canonical, *fhir.Integer, *fhir.PositiveInt, *fhir.UnsignedInt, *fhir.SystemString:
		x.Code(k, fhir.NodeOf(e).Text())
	}
}

func tokenCoding(x *fhir.Index, k fhir.Key, v *r4.Coding) {
	if v != nil {
		x.Coding(k, v.System.Text, v.Code.Text, v.Display.Text)
	}
}

func tokenCodeableConcept(x *fhir.Index, k fhir.Key, v *r4.CodeableConcept) {
	if v == nil {
		return
	}
	for i := range v.Coding {
		tokenCoding(x, k, &v.Coding[i])
	}
	x.TokenText(k, v.Text.Text)
}

func tokenIdentifier(x *fhir.Index, k fhir.Key, v *r4.Identifier) {
	if v == nil {
		return
	}
	x.Identifier(k, v.System.Text, v.Value.Text)
	if v.Type_ == nil {
		return
	}
	for i := range v.Type_.Coding {
		x.OfType(k, v.Type_.Coding[i].System.Text, v.Type_.Coding[i].Code.Text, v.Value.Text)
	}
	x.TokenText(k, v.Type_.Text.Text)
}

func tokenContactPoint(x *fhir.Index, k fhir.Key, v *r4.ContactPoint) {
	if v != nil {
		x.ContactPoint(k, v.System.Text, v.Use.Text, v.Value.Text)
	}
}

func tokenExtension(x *fhir.Index, k fhir.Key, v *fhir.Extension) { tokenOf(x, k, v.Value) }

func dateOf(x *fhir.Index, k fhir.Key, e fhir.Element) {
	switch v := e.(type) {
	case *fhir.DateTime:
		x.Date(k, v.Text)
	case *fhir.Date:
		x.Date(k, v.Text)
	case *fhir.Instant:
		x.Date(k, v.Text)
	case *r4.Period:
		datePeriod(x, k, v)
	case *r4.Timing:
		dateTiming(x, k, v)
	case *fhir.Extension:
		dateExtension(x, k, v)
	}
}

func datePeriod(x *fhir.Index, k fhir.Key, v *r4.Period) {
	if v != nil {
		x.Period(k, v.Start.Text, v.End.Text)
	}
}

// dateTiming indexes the outer limits of a schedule: from its first event or the
// start of its bounds, whichever is earlier, to the last event or the end of them.
// Spec: https://hl7.org/fhir/R4/search.html#date.
func dateTiming(x *fhir.Index, k fhir.Key, v *r4.Timing) {
	if v == nil {
		return
	}
	first, last := "", ""
	low, high := fhir.OpenHigh, fhir.OpenLow
	for i := range v.Event {
		text := v.Event[i].Text
		l, h, err := fhir.ParseDate(text)
		if err != nil {
			continue
		}
		if l < low {
			low, first = l, text
		}
		if h > high {
			high, last = h, text
		}
	}
	if v.Repeat != nil {
		if bounds, ok := v.Repeat.Bounds.(*r4.Period); ok && (bounds.Start.Text != "" || bounds.End.Text != "") {
			// An absent end is open, for all events.
			if l, _, err := fhir.ParseDate(bounds.Start.Text); err != nil || l < low {
				first = bounds.Start.Text
			}
			if _, h, err := fhir.ParseDate(bounds.End.Text); err != nil || h > high {
				last = bounds.End.Text
			}
		}
	}
	x.Period(k, first, last)
}

func dateExtension(x *fhir.Index, k fhir.Key, v *fhir.Extension) { dateOf(x, k, v.Value) }

func numberOf(x *fhir.Index, k fhir.Key, e fhir.Element) {
	switch v := e.(type) {
	case *r4.Range:
		numberRange(x, k, v)
	case *fhir.Extension:
		numberExtension(x, k, v)
	case *fhir.Decimal, *fhir.Integer, *fhir.PositiveInt, *fhir.UnsignedInt:
		x.Number(k, fhir.NodeOf(e).Text())
	}
}

func numberRange(x *fhir.Index, k fhir.Key, v *r4.Range) {
	if v != nil {
		low, high, _ := limits(v)
		x.NumberRange(k, low, high)
	}
}

func numberExtension(x *fhir.Index, k fhir.Key, v *fhir.Extension) { numberOf(x, k, v.Value) }

func quantityOf(x *fhir.Index, k fhir.Key, e fhir.Element) {
	switch v := e.(type) {
	case *r4.Quantity:
		quantityQuantity(x, k, v)
	case *r4.Age:
		quantityAge(x, k, v)
	case *r4.Count:
		quantityCount(x, k, v)
	case *r4.Distance:
		quantityDistance(x, k, v)
	case *r4.Duration:
		quantityDuration(x, k, v)
	case *r4.Money:
		quantityMoney(x, k, v)
	case *r4.Range:
		quantityRange(x, k, v)
	case *r4.SampledData:
		quantitySampledData(x, k, v)
	case *fhir.Extension:
		quantityExtension(x, k, v)
	}
}

func quantityQuantity(x *fhir.Index, k fhir.Key, v *r4.Quantity) {
	if v != nil {
		x.Quantity(k, v.Value.Text, v.Comparator.Text, v.System.Text, v.Code.Text, v.Unit.Text)
	}
}

func quantityAge(x *fhir.Index, k fhir.Key, v *r4.Age)     { quantityQuantity(x, k, (*r4.Quantity)(v)) }
func quantityCount(x *fhir.Index, k fhir.Key, v *r4.Count) { quantityQuantity(x, k, (*r4.Quantity)(v)) }
func quantityDistance(x *fhir.Index, k fhir.Key, v *r4.Distance) {
	quantityQuantity(x, k, (*r4.Quantity)(v))
}
func quantityDuration(x *fhir.Index, k fhir.Key, v *r4.Duration) {
	quantityQuantity(x, k, (*r4.Quantity)(v))
}

// quantityMoney indexes the currency as the unit.
func quantityMoney(x *fhir.Index, k fhir.Key, v *r4.Money) {
	if v == nil {
		return
	}
	system := ""
	if v.Currency.Text != "" {
		system = "urn:iso:std:iso:4217"
	}
	x.Quantity(k, v.Value.Text, "", system, v.Currency.Text, v.Currency.Text)
}

func quantityRange(x *fhir.Index, k fhir.Key, v *r4.Range) {
	if v != nil {
		low, high, unit := limits(v)
		x.QuantityRange(k, low, high, unit.System.Text, unit.Code.Text, unit.Unit.Text)
	}
}

// quantitySampledData indexes the bounds of the sampled values, as R4 says of
// value-quantity.
func quantitySampledData(x *fhir.Index, k fhir.Key, v *r4.SampledData) {
	if v == nil || v.Origin == nil {
		return
	}
	low, high := fhir.SampledBounds(v.Origin.Value.Text, v.Factor.Text, v.LowerLimit.Text, v.UpperLimit.Text, v.Data.Text)
	x.QuantityRange(k, low, high, v.Origin.System.Text, v.Origin.Code.Text, v.Origin.Unit.Text)
}

// limits are the ends of a range and the quantity that names its unit.
func limits(v *r4.Range) (low, high string, unit r4.Quantity) {
	if v.High != nil {
		high, unit = v.High.Value.Text, *v.High
	}
	if v.Low != nil {
		low, unit = v.Low.Value.Text, *v.Low
	}
	return low, high, unit
}

func quantityExtension(x *fhir.Index, k fhir.Key, v *fhir.Extension) { quantityOf(x, k, v.Value) }

func stringOf(x *fhir.Index, k fhir.Key, e fhir.Element) {
	switch v := e.(type) {
	case *r4.HumanName:
		stringHumanName(x, k, v)
	case *r4.Address:
		stringAddress(x, k, v)
	case *r4.Annotation:
		stringAnnotation(x, k, v)
	case *r4.CodeableConcept:
		stringCodeableConcept(x, k, v)
	case *r4.Coding:
		stringCoding(x, k, v)
	case *fhir.Extension:
		stringExtension(x, k, v)
	case *fhir.String, *fhir.Markdown, *fhir.Code, *fhir.ID, *fhir.URI, *fhir.URL, *fhir.Canonical, *fhir.SystemString:
		x.String(k, fhir.NodeOf(e).Text())
	}
}

// The parts of a name or an address that the caller indexes under keys of their
// own, which a search for the whole reads as well.
type parts uint

const (
	familyElsewhere parts = 1 << iota
	givenElsewhere
	prefixElsewhere
	suffixElsewhere
	lineElsewhere
	cityElsewhere
	districtElsewhere
	stateElsewhere
	postalCodeElsewhere
	countryElsewhere
	textElsewhere
)

// stringHumanName indexes every part of a name, as R4 says of `name`.
func stringHumanName(x *fhir.Index, k fhir.Key, v *r4.HumanName) {
	stringHumanNameExcept(x, k, v, 0)
}

func stringHumanNameExcept(x *fhir.Index, k fhir.Key, v *r4.HumanName, elsewhere parts) {
	if v == nil {
		return
	}
	part := func(p parts, s string) {
		if elsewhere&p == 0 {
			x.Name(k, s)
		}
	}
	part(familyElsewhere, v.Family.Text)
	for i := range v.Given {
		part(givenElsewhere, v.Given[i].Text)
	}
	for i := range v.Prefix {
		part(prefixElsewhere, v.Prefix[i].Text)
	}
	for i := range v.Suffix {
		part(suffixElsewhere, v.Suffix[i].Text)
	}
	part(textElsewhere, v.Text.Text)
}

// stringAddress indexes every part of an address, as R4 says of `address`.
func stringAddress(x *fhir.Index, k fhir.Key, v *r4.Address) {
	stringAddressExcept(x, k, v, 0)
}

func stringAddressExcept(x *fhir.Index, k fhir.Key, v *r4.Address, elsewhere parts) {
	if v == nil {
		return
	}
	part := func(p parts, s string) {
		if elsewhere&p == 0 {
			x.String(k, s)
		}
	}
	for i := range v.Line {
		part(lineElsewhere, v.Line[i].Text)
	}
	part(cityElsewhere, v.City.Text)
	part(districtElsewhere, v.District.Text)
	part(stateElsewhere, v.State.Text)
	part(postalCodeElsewhere, v.PostalCode.Text)
	part(countryElsewhere, v.Country.Text)
	part(textElsewhere, v.Text.Text)
}

func stringAnnotation(x *fhir.Index, k fhir.Key, v *r4.Annotation) {
	if v != nil {
		x.String(k, v.Text.Text)
	}
}

func stringCodeableConcept(x *fhir.Index, k fhir.Key, v *r4.CodeableConcept) {
	if v == nil {
		return
	}
	for i := range v.Coding {
		stringCoding(x, k, &v.Coding[i])
	}
	x.String(k, v.Text.Text)
}

func stringCoding(x *fhir.Index, k fhir.Key, v *r4.Coding) {
	if v != nil {
		x.String(k, v.Display.Text)
	}
}

func stringExtension(x *fhir.Index, k fhir.Key, v *fhir.Extension) { stringOf(x, k, v.Value) }

func referenceOf(x *fhir.Index, k fhir.Key, e fhir.Element) {
	switch v := e.(type) {
	case *r4.Reference:
		referenceReference(x, k, v)
	case *fhir.Extension:
		referenceExtension(x, k, v)
	case *fhir.Canonical, *fhir.URI, *fhir.URL, *fhir.OID, *fhir.UUID:
		x.Canonical(k, fhir.NodeOf(e).Text())
	case fhir.Resource:
		referenceResource(x, k, v)
	}
}

func referenceReference(x *fhir.Index, k fhir.Key, v *r4.Reference) {
	if v == nil {
		return
	}
	typ := x.Reference(k, v.Reference.Text, v.Type_.Text)
	if v.Identifier != nil {
		x.LogicalReference(k, typ, v.Identifier.System.Text, v.Identifier.Value.Text)
	}
}

// referenceResource indexes a resource that stands where others have a reference
// to it: the first entry of a document or message.
func referenceResource(x *fhir.Index, k fhir.Key, v fhir.Resource) {
	if v == nil {
		return
	}
	switch v.(type) {
	case *r4.Composition, *r4.MessageHeader: // no parameter is about others
		x.Embedded(k, v)
	}
	if v.Header().ID.Text != "" {
		x.Reference(k, v.Type().Name+"/"+v.Header().ID.Text, "")
	}
}

func referenceExtension(x *fhir.Index, k fhir.Key, v *fhir.Extension) { referenceOf(x, k, v.Value) }

func uriOf(x *fhir.Index, k fhir.Key, e fhir.Element) {
	switch v := e.(type) {
	case *fhir.Extension:
		uriExtension(x, k, v)
	case *fhir.Canonical:
		x.CanonicalURI(k, v.Text)
	case *fhir.URI, *fhir.URL, *fhir.OID, *fhir.UUID, *fhir.SystemString:
		x.URI(k, fhir.NodeOf(e).Text())
	}
}

func uriExtension(x *fhir.Index, k fhir.Key, v *fhir.Extension) { uriOf(x, k, v.Value) }

// existsAndNotFalse is `path.exists() and path != false` of a choice.
func existsAndNotFalse(e fhir.Element) string {
	if b, ok := e.(*fhir.Boolean); e == nil || ok && (b.Text == "false" || b.Text == "") {
		return "false"
	}
	return "true"
}

// hasExtension reports whether one of the extensions has the URL.
func hasExtension(list []fhir.Extension, url string) bool {
	for i := range list {
		if list[i].URL.Text == url {
			return true
		}
	}
	return false
}
