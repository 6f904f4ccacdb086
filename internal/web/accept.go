package web

import (
	"cmp"
	"mime"
	"slices"
	"strconv"
	"strings"
)

// form is a form of a page; without a version it is text for people.
type form struct{ media, version string }

// clause is one part of an Accept header.
type clause struct {
	media  string
	params map[string]string
	weight float64
}

// negotiate returns the available form with the highest weight; false if none is
// acceptable. Without an Accept header it is text.
func negotiate(accept []string, kind string) (form, bool) {
	clauses := parseAccept(strings.Join(accept, ","))
	if len(clauses) == 0 {
		return form{media: typeText}, strings.TrimSpace(strings.Join(accept, "")) == ""
	}
	for _, c := range clauses {
		if f, ok := c.form(kind); ok {
			return f, true
		}
	}
	return form{}, false
}

// parseAccept returns the clauses by falling weight. It leaves out invalid clauses and
// those with weight 0.
func parseAccept(header string) []clause {
	var list []clause
	for part := range strings.SplitSeq(header, ",") {
		media, params, err := mime.ParseMediaType(part)
		if err != nil {
			continue
		}
		c := clause{media, params, 1}
		if q, ok := params["q"]; ok {
			if c.weight, err = strconv.ParseFloat(q, 64); err != nil || c.weight <= 0 {
				continue
			}
		}
		list = append(list, c)
	}
	slices.SortStableFunc(list, func(a, b clause) int { return cmp.Compare(b.weight, a.weight) })
	return list
}

// form returns the requested form, if the kind has it.
func (c clause) form(kind string) (form, bool) {
	group0, version, as := c.params["g"], c.params["v"], c.params["as"]
	plain := group0 == "" && version == "" && as == ""
	switch c.media {
	case "text/plain", "text/*", "*/*":
		return form{media: typeText}, plain
	case typeJSON, typeYAML:
		known := version == "v1beta1" || version == "v1alpha1"
		return form{c.media, version}, group0 == group && known && as == kind
	}
	return form{}, false
}
