package config

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/sluice-proxy/sluice/internal/text"
)

// Differences lists the fields in which two configurations differ, defaults and flags included: "conntrack.min: 5 ->
// 6". It cuts off long values. Values that only flags set are the same in all configurations of one process.
func Differences(old, new *Config) []string {
	from, to := old.leaves(), new.leaves()
	all := maps.Clone(from)
	maps.Copy(all, to)
	var list []string
	for _, path := range slices.Sorted(maps.Keys(all)) {
		if from[path] != to[path] {
			list = append(list, fmt.Sprintf("%s: %s -> %s", path, display(from[path]), display(to[path])))
		}
	}
	return list
}

// leaves returns the JSON of each field that is not a struct, by its path.
func (c *Config) leaves() map[string]string {
	leaves := map[string]string{}
	addLeaves(leaves, "", c.Effective())
	leaves["hostnameOverride"] = strconv.Quote(c.NodeName) // as it may come from the host
	return leaves
}

func addLeaves(to map[string]string, path string, value json.RawMessage) {
	var fields map[string]json.RawMessage
	if json.Unmarshal(value, &fields) != nil || fields == nil {
		to[path] = string(value)
		return
	}
	for name, v := range fields {
		at := name
		if path != "" {
			at = path + "." + name
		}
		addLeaves(to, at, v)
	}
}

// display returns a value without quotes.
func display(value string) string {
	if value == "" {
		value = "null"
	}
	if plain, err := strconv.Unquote(value); err == nil && plain != "" {
		value = plain
	}
	return text.Short(value)
}
