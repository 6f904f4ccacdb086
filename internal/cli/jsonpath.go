package cli

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/client-go/util/jsonpath"
	kubejson "sigs.k8s.io/json"
)

// jsonPath is the name of the format for JSONPath templates.
const jsonPath = "jsonpath"

// template is a JSONPath template of kubectl. The braces of one that is only a path may be left out.
type template string

// apply returns an applied template. The library changes a template when it is applied, so each one is for one value.
func (t template) apply(answer json.RawMessage) (*jsonpath.JSONPath, any, error) {
	if !strings.Contains(string(t), "{") {
		t = "{." + template(strings.TrimPrefix(string(t), ".")) + "}"
	}
	path := jsonpath.New("template").AllowMissingKeys(true)
	if err := path.Parse(string(t)); err != nil {
		return nil, nil, fmt.Errorf("JSONPath %q: %w", string(t), err)
	}
	var value any
	err := kubejson.UnmarshalCaseSensitivePreserveInts(answer, &value)
	return path, value, err
}

// asPath returns what a template prints of an answer.
func asPath(argument string) (func(json.RawMessage) ([]byte, error), error) {
	encode := func(answer json.RawMessage) ([]byte, error) {
		path, value, err := template(argument).apply(answer)
		if err != nil {
			return nil, err
		}
		var out bytes.Buffer
		err = path.Execute(&out, value)
		return out.Bytes(), err
	}
	_, _, err := template(argument).apply([]byte("null"))
	return encode, err
}

// first returns the first value that the template finds in an answer, "" if there is none.
func (t template) first(answer json.RawMessage) (any, error) {
	path, value, err := t.apply(answer)
	if err != nil {
		return nil, err
	}
	results, err := path.FindResults(value)
	if err != nil {
		return nil, fmt.Errorf("JSONPath %q: %w", string(t), err)
	}
	if found := slices.Concat(results...); len(found) > 0 && found[0].IsValid() {
		return found[0].Interface(), nil
	}
	return "", nil
}

// sorted returns the answers sorted by the values of a template. Answers without a value are first.
func (t template) sorted(all answerLines) answerLines {
	type entry struct {
		key    any
		answer json.RawMessage
	}
	return func(yield func(json.RawMessage, error) bool) {
		var list []entry
		for answer, err := range all {
			e := entry{answer: slices.Clone(answer)}
			if err == nil {
				e.key, err = t.first(answer)
			}
			if err != nil {
				yield(nil, err)
				return
			}
			list = append(list, e)
		}
		if len(list) > 0 && !slices.ContainsFunc(list, func(e entry) bool { return e.key != "" }) {
			yield(nil, fmt.Errorf("--sort-by %s: no item has this field; -o json shows the fields", string(t)))
			return
		}
		slices.SortStableFunc(list, func(a, b entry) int { return compareKeys(a.key, b.key) })
		for _, e := range list {
			if !yield(e.answer, nil) {
				return
			}
		}
	}
}

// compareKeys compares numbers and addresses by their value, and all else as text.
func compareKeys(a, b any) int {
	numberA, isA := a.(int64)
	numberB, isB := b.(int64)
	if isA && isB {
		return cmp.Compare(numberA, numberB)
	}
	textA, textB := fmt.Sprint(a), fmt.Sprint(b)
	addrA, errA := netip.ParseAddr(textA)
	addrB, errB := netip.ParseAddr(textB)
	if errA == nil && errB == nil {
		return addrA.Compare(addrB)
	}
	return strings.Compare(textA, textB)
}
