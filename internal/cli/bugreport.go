package cli

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-proxy/sluice/internal/admin"
	"github.com/sluice-proxy/sluice/internal/answer/inspect"
	"github.com/sluice-proxy/sluice/internal/bugreport"
	"github.com/sluice-proxy/sluice/internal/preflight"
)

// newBugreport returns the command that writes what a person needs who helps with a fault.
func newBugreport(env Env) *cobra.Command {
	var file string
	var anonymize bool
	cmd := &cobra.Command{
		Use:   "bugreport",
		Short: "Write an archive for those who help with a fault: state, rules, Events, settings, kernel",
		Long: `Write a .tar.gz of what a person needs who helps with a fault: status, the difference of the kernel
from its rules, these rules, Services and backends, the latest Events, settings, and facts about
the kernel. It takes less than 5 seconds; what could not be had in that time, or without a daemon,
has a file that says why. Secrets are not read, and what looks like one is removed. Look into the
archive before you give it away.

With --anonymize, addresses and names of namespaces, Services, endpoints and nodes are hashes, the same
in all files of the archive. Ports, and names that every cluster has, stay as they are.`,
		Example: `  sluice bugreport
  sluice bugreport --anonymize -o report.tar.gz
  kubectl -n kube-system exec POD -- sluice bugreport -o - > report.tar.gz`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			now := time.Now().UTC().Truncate(time.Second)
			name := "sluice-bugreport-" + now.Format("20060102-150405")
			if file == "" {
				file = name + ".tar.gz"
			}
			if err := absent(file); err != nil {
				return err
			}
			r := report(cmd.Context(), now, name)
			if err := cmd.Context().Err(); err != nil {
				return fmt.Errorf("collect files: %w", err)
			}
			if anonymize {
				r = anonymous(r)
			}
			return writeReport(r, file, env)
		},
	}
	cmd.Flags().StringVarP(&file, "output", "o", "", "`file` to write, which must not exist, or - for standard output (default sluice-bugreport-TIME.tar.gz)")
	cmd.Flags().BoolVar(&anonymize, "anonymize", false, "replace addresses and names by hashes")
	return cmd
}

// report collects everything.
func report(ctx context.Context, now time.Time, name string) bugreport.Archive {
	files := bugreport.Collect(ctx, reportSources())
	return bugreport.Archive{
		Folder: name, At: now, Files: files, Clean: bugreport.Secrets(),
		About: fmt.Sprintf("Bug report of Sluice %s, %s\n", version(), now.Format(time.RFC3339)),
	}
}

// services is the file with the names of all Services.
const services = "services.json"

func reportSources() []bugreport.Source {
	asked := func(path string) func(context.Context) ([]byte, error) {
		return func(ctx context.Context) ([]byte, error) { return askWhole(ctx, path) }
	}
	difference := func(path string) func(context.Context) ([]byte, error) {
		return func(ctx context.Context) ([]byte, error) {
			var d inspect.Difference
			err := admin.DialNearest().Get(ctx, path, nil, &d)
			return fmt.Appendf(nil, "%d steps\n%s", d.Steps, d.Text), err
		}
	}
	return []bugreport.Source{
		{Name: "status.json", Read: asked("/status")},
		{Name: "settings.json", Read: asked("/settings")},
		{Name: "events.json", Read: asked("/events")},
		{Name: "diff.txt", Read: difference("/diff")},
		{Name: "plan.txt", Read: difference("/plan")},
		{Name: services, Read: asked("/services")},
		{Name: "backends.json", Read: asked("/backends")},
		{Name: "nodeports.json", Read: asked("/nodeports")},
		{Name: "addresses.json", Read: asked("/addresses")},
		{Name: "rules.txt", Read: func(ctx context.Context) ([]byte, error) { return bugreport.Rules(ctx, 0) }},
		{Name: "kernel.json", Read: func(ctx context.Context) ([]byte, error) {
			return json.MarshalIndent(preflight.ReadHost(ctx, 0), "", "  ")
		}},
	}
}

// askWhole returns an answer of the daemon, as far as a file may have it.
func askWhole(ctx context.Context, path string) ([]byte, error) {
	answer, err := admin.DialNearest().Ask(ctx, path, nil)
	if err != nil {
		return nil, err
	}
	defer func() { _ = answer.Close() }() // it is only read
	return io.ReadAll(io.LimitReader(answer, bugreport.MaxFile+1))
}

// anonymous replaces addresses and names. Files that may have names are left out if these are not all known.
func anonymous(r bugreport.Archive) bugreport.Archive {
	key := make([]byte, 32)
	_, _ = rand.Read(key) // never fails
	host, _ := os.Hostname()
	a := bugreport.NewAnonymizer(key, r.Files, host)
	r.About += "Addresses and names are hashes.\n"
	whole := true
	for _, f := range r.Files {
		whole = whole && (f.Name != services || f.Err == nil && !f.Cut)
	}
	for i, f := range r.Files {
		if ofNode := f.Name == "rules.txt" || f.Name == "kernel.json"; !whole && !ofNode && f.Err == nil {
			r.Files[i] = bugreport.File{Name: f.Name, Err: errors.New("left out, as --anonymize does not know all names without a whole " + services)}
		}
	}
	secrets := r.Clean
	r.Clean = func(text []byte) []byte { return a.Clean(secrets(text)) }
	return r
}

// absent returns an error unless a file can be made.
func absent(file string) error {
	if file == "-" {
		return nil
	}
	if _, err := os.Lstat(file); err == nil {
		return fmt.Errorf("%s exists: remove it, or name another file with --output", file)
	}
	if info, err := os.Stat(filepath.Dir(file)); err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	} else if !info.IsDir() {
		return fmt.Errorf("write %s: %s is not a folder", file, filepath.Dir(file))
	}
	return nil
}

// writeReport writes the archive. A file gets its name when it is complete.
func writeReport(r bugreport.Archive, file string, env Env) error {
	if file == "-" {
		return r.Write(env.Stdout)
	}
	var b bytes.Buffer
	if err := r.Write(&b); err != nil {
		return err
	}
	partial, err := os.CreateTemp(filepath.Dir(file), "."+filepath.Base(file)+".*") // for this user only
	if err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	defer func() { _ = os.Remove(partial.Name()) }() // after Link it is a second name
	_, err = partial.Write(b.Bytes())
	if err = errors.Join(err, partial.Close()); err == nil {
		err = os.Link(partial.Name(), file) // fails if it exists, unlike Rename
	}
	if err != nil && !errors.Is(err, fs.ErrExist) { // a file system without links, such as that of a memory stick
		err = os.Rename(partial.Name(), file)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	fmt.Fprintf(env.Stdout, "%s\n", file)
	var missing []string
	for _, f := range r.Files {
		if f.Err != nil {
			missing = append(missing, f.Name)
		}
	}
	if len(missing) > 0 {
		fmt.Fprintf(env.Stderr, "Without %s: about.txt in the archive says why.\n", strings.Join(missing, ", "))
	}
	return nil
}
