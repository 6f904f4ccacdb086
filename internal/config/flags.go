package config

import (
	"maps"
	"reflect"
	"strings"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/kube-proxy/config/v1alpha1"
)

// Flags holds the command line.
type Flags struct {
	mirrored v1alpha1.KubeProxyConfiguration // what flags say of fields a file may have
	own      ownFlags
	given    map[string]string // flag name -> the text given last, for flags that were given
	problems []Problem
}

// ownFlags are the flags that no field of the file stands for.
type ownFlags struct {
	config      string
	writeTo     string
	master      string
	manifests   paths
	cleanup     bool
	initOnly    bool
	ignore      bool
	jitter      *metav1.Duration // nil: not given
	version     Version
	healthzPort string // these two are judged with the address they complete
	metricsPort string

	conntrackMax *int32 // nil: not given
}

// Group is a heading of the help text and the flags below it.
type Group struct {
	Title string
	Flags []string
}

// NewFlags registers all flags, those that only older versions of kube-proxy had
// as hidden ones. A flag whose value is wrong is not an error of
// the flag set: Load tells it along with everything else that is wrong. Names
// may be spelled with underscores.
func NewFlags(fs *pflag.FlagSet) *Flags {
	f := &Flags{given: map[string]string{}}
	fs.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		return pflag.NormalizedName(strings.ReplaceAll(name, "_", "-"))
	})
	fs.SortFlags = false
	for _, group := range table() {
		for _, def := range group.flags {
			f.register(fs, def)
		}
	}
	return f
}

func (f *Flags) register(fs *pflag.FlagSet, def flagDef) {
	v := &flagValue{flags: f, name: def.name, initial: def.initial}
	if def.own != nil {
		v.targets = []reflect.Value{reflect.ValueOf(def.own(&f.own)).Elem()}
	}
	for _, path := range def.fields {
		v.targets = append(v.targets, fieldAt(reflect.ValueOf(&f.mirrored).Elem(), path))
	}
	flag := fs.VarPF(v, def.name, def.short, def.usage)
	flag.Hidden = def.removed != ""
	if kind := base(v.targets[0].Type()); kind.Kind() == reflect.Bool || kind == reflect.TypeFor[Version]() {
		flag.NoOptDefVal = "true"
	}
}

// Groups returns the headings of the help text in order, what a person needs
// first at the top. Every flag that is not hidden is in one group.
func Groups() []Group {
	var groups []Group
	for _, g := range current() {
		group := Group{Title: g.title}
		for _, def := range g.flags {
			group.Flags = append(group.Flags, def.name)
		}
		groups = append(groups, group)
	}
	return groups
}

// Version returns what --version asks for. It needs no Load: a configuration
// that is wrong does not hide the version.
func (f *Flags) Version() Version { return f.own.version }

// File returns the path of the configuration file, "" if there is none.
func (f *Flags) File() string { return f.own.config }

// apply writes what flags say over what the file says. Maps are merged by key,
// --vmodule adds to the file's list.
func (f *Flags) apply(to *v1alpha1.KubeProxyConfiguration) {
	for name := range f.given {
		for _, path := range fieldsOf(name) {
			overlay(fieldAt(reflect.ValueOf(to).Elem(), path), fieldAt(reflect.ValueOf(&f.mirrored).Elem(), path))
		}
	}
}

func overlay(to, from reflect.Value) {
	switch said := to.Interface().(type) {
	case map[string]bool:
		merged := map[string]bool{}
		maps.Copy(merged, said)
		maps.Copy(merged, from.Interface().(map[string]bool))
		from = reflect.ValueOf(merged)
	case logsapi.VModuleConfiguration:
		from = reflect.AppendSlice(to, from)
	}
	to.Set(from)
}

func fieldsOf(flag string) []string {
	for _, g := range table() {
		for _, def := range g.flags {
			if def.name == flag {
				return def.fields
			}
		}
	}
	return nil
}

// flagValue is a pflag.Value that sets fields.
type flagValue struct {
	flags   *Flags
	name    string
	initial string // the default, for the help text
	targets []reflect.Value
}

// Set keeps a wrong value for Load to tell.
func (v *flagValue) Set(text string) error {
	for _, target := range v.targets {
		if err := setText(target, text); err != nil {
			v.flags.problems = append(v.flags.problems, Problem{Field: "--" + v.name, Reason: invalid(text, err.Error())})
			return nil
		}
	}
	v.flags.given[v.name] = text
	return nil
}

// String returns the value given last, or the default.
func (v *flagValue) String() string {
	if v.flags == nil {
		return ""
	}
	if text, ok := v.flags.given[v.name]; ok {
		return text
	}
	return v.initial
}

// Type returns the word for the value in the help text.
func (v *flagValue) Type() string {
	if len(v.targets) == 0 {
		return ""
	}
	t := base(v.targets[0].Type())
	switch t.Name() {
	case "Duration", "TimeOrMetaDuration":
		return "duration"
	case "QuantityValue":
		return "quantity"
	case "VModuleConfiguration":
		return "pattern=N,..."
	case "Version":
		return "version"
	case "paths":
		return "path"
	}
	switch t.Kind() {
	case reflect.Map:
		return "Name=bool,..."
	case reflect.Slice:
		return "list"
	case reflect.Int32, reflect.Uint32:
		return "int"
	case reflect.Float32:
		return "number"
	default:
		return t.Kind().String()
	}
}
