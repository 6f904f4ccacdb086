package config

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"k8s.io/kube-proxy/config/v1alpha1"
	"sigs.k8s.io/yaml"
)

// Field is a setting that two configurations do not agree on.
type Field struct {
	Name     string // its path in the file
	Old, New string // as a file says it
}

// String returns the field on one line.
func (f Field) String() string { return f.Name + ": " + f.Old + " -> " + f.New }

// Changes compares two configurations of one process: which settings can change
// while it runs, and which only when it starts again. What only flags say does
// not change in a process and is not looked at.
func Changes(old, new *Config) (live, restart []Field) {
	from, to := texts(old), texts(new)
	for _, s := range changed(old, new) {
		f := s.field(from, to, new)
		if f.Old == f.New && s.ofMode && old.Mode != new.Mode {
			continue // follows from the mode
		}
		if f.Old == f.New { // one that the world says, such as the host's name
			f.Old, f.New = fmt.Sprint(s.of(old).Interface()), fmt.Sprint(s.of(new).Interface())
		}
		if s.when(old, new) == whileRunning {
			live = append(live, f)
		} else {
			restart = append(restart, f)
		}
	}
	return live, restart
}

// Merge returns the configuration that a process has in force when it has taken
// over from new what can change while it runs.
func Merge(old, new *Config) (*Config, error) {
	merged := *old
	to, err := decodeEffective(old)
	if err != nil {
		return nil, err
	}
	from, err := decodeEffective(new)
	if err != nil {
		return nil, err
	}
	whole := true
	for _, s := range changed(old, new) {
		if s.when(old, new) != whileRunning {
			whole = false
			continue
		}
		s.of(&merged).Set(s.of(new))
		path := s.path(new)
		fieldAt(reflect.ValueOf(to).Elem(), path).Set(fieldAt(reflect.ValueOf(from).Elem(), path))
	}
	if whole { // with what it says about other modes
		merged.effective = new.effective
		return &merged, nil
	}
	if merged.effective, err = yaml.Marshal(to); err != nil {
		return nil, fmt.Errorf("render configuration: %w", err)
	}
	return &merged, nil
}

// changed returns the settings that differ and are in the file.
func changed(old, new *Config) []setting {
	var list []setting
	for _, s := range allSettings() {
		if s.changes != never && !same(s.of(old), s.of(new)) {
			list = append(list, s)
		}
	}
	return list
}

// same takes nothing for nothing: an empty list for none.
func same(a, b reflect.Value) bool {
	if k := a.Kind(); (k == reflect.Slice || k == reflect.Map) && a.Len() == 0 && b.Len() == 0 {
		return true
	}
	return reflect.DeepEqual(a.Interface(), b.Interface())
}

// when is when a change of the setting takes effect. What belongs to another
// mode has to wait for that mode.
func (s setting) when(old, new *Config) moment {
	if s.ofMode && old.Mode != new.Mode {
		return atStart
	}
	return s.changes
}

// of returns the setting's field in a Config.
func (s setting) of(c *Config) reflect.Value {
	v := reflect.ValueOf(c).Elem()
	for name := range strings.SplitSeq(s.name, ".") {
		v = v.FieldByName(name)
	}
	return v
}

// path returns where the setting is in a file.
func (s setting) path(c *Config) string {
	times, rules := "nftables", "nftables" // as section has them
	switch c.Mode {
	case "iptables":
		times, rules = "iptables", "iptables"
	case "ipvs":
		times, rules = "ipvs", "iptables"
	}
	return strings.NewReplacer("TIMES", times, "RULES", rules, "FORMAT", c.Logging.Format).Replace(s.file)
}

func (s setting) field(from, to *v1alpha1.KubeProxyConfiguration, c *Config) Field {
	path := s.path(c)
	text := func(in *v1alpha1.KubeProxyConfiguration) string {
		data, err := json.Marshal(fieldAt(reflect.ValueOf(in).Elem(), path).Interface())
		if err != nil {
			return ""
		}
		if plain, err := strconv.Unquote(string(data)); err == nil && plain != "" {
			return plain
		}
		return string(data)
	}
	return Field{Name: path, Old: text(from), New: text(to)}
}

// texts is a Config as a file says it, as far as it is known.
func texts(c *Config) *v1alpha1.KubeProxyConfiguration {
	in, err := decodeEffective(c)
	if err != nil {
		return &v1alpha1.KubeProxyConfiguration{}
	}
	return in
}

func decodeEffective(c *Config) (*v1alpha1.KubeProxyConfiguration, error) {
	in := &v1alpha1.KubeProxyConfiguration{}
	if err := yaml.Unmarshal(c.effective, in); err != nil {
		return nil, fmt.Errorf("read the configuration in force: %w", err)
	}
	return in, nil
}
