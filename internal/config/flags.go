package config

import (
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/kube-proxy/config/v1alpha1"
)

// Flags holds the command line.
type Flags struct {
	defs     map[string]flagDef
	mirrored v1alpha1.KubeProxyConfiguration // the fields of a file that flags set
	own      ownFlags
	values   map[string]string // flag name -> its last value on the command line
	problems []Problem
}

// ownFlags are the values of flags without a field in the file, or their defaults, by the names that flags.txt has for
// them.
type ownFlags struct {
	Config          string          `json:"config"`
	WriteTo         string          `json:"write-config-to"`
	Master          string          `json:"master"`
	Manifests       paths           `json:"manifests"`
	Cleanup         bool            `json:"cleanup"`
	InitOnly        bool            `json:"init-only"`
	IgnoreKubeProxy bool            `json:"ignore-kube-proxy"`
	Jitter          metav1.Duration `json:"reload-jitter"`
	Ejection        string          `json:"ejection"`
	DirectTunnel    int32           `json:"direct-tunnel-port"`
	External        string          `json:"external"`
	Version         Version         `json:"version"`
	ConntrackMax    *int32          `json:"conntrack-max"` // nil: not set
	UDPTimeout      metav1.Duration `json:"udp-timeout"`
	Scheduler       string          `json:"scheduler"`
	DrainTimeout    metav1.Duration `json:"drain-timeout"`
	BPFDir          string          `json:"bpf-dir"`
	CgroupRoot      string          `json:"cgroup-root"`
	ExemptCgroups   string          `json:"exempt-cgroups"`
	Drain           string          `json:"drain-bind-address"`

	ExternalIPRanges     string `json:"external-ip-ranges"`
	LoadBalancerIPRanges string `json:"load-balancer-ip-ranges"`
}

// NewFlags registers all flags. Flags that only older versions of kube-proxy had are hidden. An invalid value is not
// an error of the flag set: Load reports it together with all other problems. Names may be spelled with underscores.
func NewFlags(fs *pflag.FlagSet) *Flags {
	f := &Flags{defs: map[string]flagDef{}, values: map[string]string{}}
	fs.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		return pflag.NormalizedName(strings.ReplaceAll(name, "_", "-"))
	})
	fs.SortFlags = false
	for _, group := range table() {
		for _, def := range group.defs {
			f.register(fs, def)
		}
	}
	return f
}

func (f *Flags) register(fs *pflag.FlagSet, def flagDef) {
	f.defs[def.name] = def
	v := &flagValue{flags: f, name: def.name, initial: def.initial}
	for _, name := range def.sets {
		target := f.target(name)
		if strings.HasPrefix(name, "--") && def.initial != "" {
			_ = setText(target, def.initial) // the tests read the table
		}
		v.targets = append(v.targets, target)
	}
	short := ""
	if len(def.name) == 1 {
		short = def.name
	}
	flag := fs.VarPF(v, def.name, short, def.usage)
	flag.Hidden = def.removed != ""
	if t := base(v.targets[0].Type()); t.Kind() == reflect.Bool || t == reflect.TypeFor[Version]() {
		flag.NoOptDefVal = "true"
	}
}

// target returns the value for a name in the column "sets" of a table of flags.
func (f *Flags) target(name string) reflect.Value {
	switch own, ok := strings.CutPrefix(name, "--"); {
	case ok:
		return fieldAt(reflect.ValueOf(&f.own).Elem(), own)
	case name == "text":
		return reflect.ValueOf(new(string)).Elem()
	case name == "bool":
		return reflect.ValueOf(new(bool)).Elem()
	}
	return fieldAt(reflect.ValueOf(&f.mirrored).Elem(), name)
}

// fields returns the fields of the file that the flag overrides.
func (d flagDef) fields() []string {
	return slices.DeleteFunc(slices.Clone(d.sets), func(name string) bool {
		return name == "text" || name == "bool" || strings.HasPrefix(name, "--")
	})
}

// Version returns the value of --version. It does not need Load, so that --version works with an invalid configuration.
func (f *Flags) Version() Version { return f.own.Version }

// File returns the path of the configuration file, "" if there is none.
func (f *Flags) File() string { return f.own.Config }

// WindowsService returns the value of --windows-service. It does not need Load, so that the service
// manager learns of an invalid configuration.
func (f *Flags) WindowsService() bool { return f.mirrored.WindowsRunAsService }

// Values returns every flag with its value or default. It leaves out the flags that only
// older versions of kube-proxy had, because they may contain passwords for cAdvisor.
func (f *Flags) Values() map[string]string {
	values := map[string]string{}
	for _, group := range Groups() {
		for _, def := range group.defs {
			values[def.name] = def.initial
			if text, ok := f.values[def.name]; ok {
				values[def.name] = text
			}
		}
	}
	return values
}

// apply overwrites fields of the file with the values of flags. Maps are merged by key; --vmodule adds to the file's
// list.
func (f *Flags) apply(to *v1alpha1.KubeProxyConfiguration) {
	for name := range f.values {
		for _, path := range f.defs[name].fields() {
			overlay(fieldAt(reflect.ValueOf(to).Elem(), path), fieldAt(reflect.ValueOf(&f.mirrored).Elem(), path))
		}
	}
}

func overlay(to, from reflect.Value) {
	switch value := to.Interface().(type) {
	case map[string]bool:
		merged := map[string]bool{}
		maps.Copy(merged, value)
		maps.Copy(merged, from.Interface().(map[string]bool))
		from = reflect.ValueOf(merged)
	case logsapi.VModuleConfiguration:
		from = reflect.AppendSlice(to, from)
	}
	to.Set(from)
}

// flagValue is a pflag.Value that sets fields.
type flagValue struct {
	flags   *Flags
	name    string
	initial string // the default, for the help text
	targets []reflect.Value
}

// Set keeps an invalid value, which Load reports.
func (v *flagValue) Set(text string) error {
	for _, target := range v.targets {
		if err := setText(target, text); err != nil {
			v.flags.problems = append(v.flags.problems, Problem{Field: "--" + v.name, Reason: invalid(text, err.Error())})
			return nil
		}
	}
	v.flags.values[v.name] = text
	return nil
}

// String returns the last value on the command line, or the default.
func (v *flagValue) String() string {
	if v.flags == nil {
		return ""
	}
	if text, ok := v.flags.values[v.name]; ok {
		return text
	}
	return v.initial
}

// Type returns the word for the value in the help text.
func (v *flagValue) Type() string {
	if len(v.targets) == 0 {
		return ""
	}
	word, _ := describe(v.targets[0].Type())
	return word
}
