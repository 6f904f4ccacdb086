package convert

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
)

// labelText returns labels as cluster.Service.Labels. It allocates less than apimachinery's Set.String: all Services of
// a List are converted.
func labelText(set map[string]string) string {
	size := 0
	keys := make([]string, 0, len(set))
	for key, value := range set {
		keys = append(keys, key)
		size += len(key) + len(value) + len("=,")
	}
	slices.Sort(keys)
	text := make([]byte, 0, size)
	for _, key := range keys {
		text = append(append(append(append(text, key...), '='), set[key]...), ',')
	}
	return strings.TrimSuffix(string(text), ",")
}

// Selector returns a function that reports whether a label selector, as users write it, selects labels in the form of
// cluster.Service.Labels.
func Selector(text string) (func(labels string) bool, error) {
	selector, err := labels.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("label selector %q: %w", text, err)
	}
	return func(list string) bool {
		set := labels.Set{}
		for label := range strings.SplitSeq(list, ",") {
			if key, value, has := strings.Cut(label, "="); has {
				set[key] = value
			}
		}
		return selector.Matches(set)
	}, nil
}
