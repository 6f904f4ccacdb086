package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"sigs.k8s.io/yaml"

	"github.com/sluice-proxy/sluice/internal/text"
)

// Effective returns the configuration in force, defaults and flags included, as
// a KubeProxyConfiguration v1alpha1 in JSON.
func (c *Config) Effective() []byte {
	text, _ := yaml.YAMLToJSON(c.effective) // Load wrote it
	return text
}

// Write writes the configuration in force to WriteConfigTo. It replaces a file as a whole, so that no reader sees half
// of one, and writes to a device, pipe or link directly.
func (c *Config) Write() error {
	info, err := os.Lstat(c.WriteConfigTo)
	switch {
	case errors.Is(err, fs.ErrNotExist) || err == nil && info.Mode().IsRegular():
		err = replace(c.WriteConfigTo, c.effective)
	case err == nil:
		err = os.WriteFile(c.WriteConfigTo, c.effective, 0o644)
	}
	if err != nil {
		return fmt.Errorf("write configuration: %w", err)
	}
	return nil
}

func replace(name string, data []byte) error {
	tmp, err := os.CreateTemp(filepath.Dir(name), ".sluice-config-*")
	if err != nil {
		return err
	}
	_, err = tmp.Write(data)
	err = errors.Join(err, tmp.Chmod(0o644), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), name)
	}
	if err != nil {
		return errors.Join(err, os.Remove(tmp.Name()))
	}
	return nil
}

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
