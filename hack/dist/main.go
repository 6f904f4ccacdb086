// Command dist writes the files of a release of Sluice besides its images: archives of the programs, the chart, the
// manifests, bills of materials, licences and checksums. The same commit gives the same bytes.
package main

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

const usage = `usage: dist -version v0.1.0 -bin FOLDER -out FOLDER

Reads the programs sluice-OS-ARCHITECTURE in a folder and the files of the project in the working
folder, and writes the files of a release into -out, whose checksums include the image layouts there.
SOURCE_DATE_EPOCH is the time of files in archives, in seconds since 1970.
`

func main() {
	o, err := parse(os.Args[1:], os.Getenv("SOURCE_DATE_EPOCH"))
	if err == nil {
		err = write(o)
	}
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "dist:", err)
		os.Exit(1)
	}
}

// options are the arguments of main.
type options struct {
	version  string // as v0.1.0
	bin, out string // folders
	created  time.Time
}

func parse(args []string, epoch string) (o options, err error) {
	fs := flag.NewFlagSet("dist", flag.ContinueOnError)
	fs.Usage = func() { fmt.Fprint(fs.Output(), usage) }
	fs.StringVar(&o.version, "version", "", "")
	fs.StringVar(&o.bin, "bin", "", "")
	fs.StringVar(&o.out, "out", "", "")
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	if !strings.HasPrefix(o.version, "v") || o.bin == "" || o.out == "" || fs.NArg() > 0 {
		fs.Usage()
		return o, errors.New("want -version, which begins with v, -bin and -out")
	}
	seconds, err := strconv.ParseInt(epoch, 10, 64)
	if err != nil || seconds < 0 {
		return o, fmt.Errorf("SOURCE_DATE_EPOCH=%s: want seconds since 1970", epoch)
	}
	o.created = time.Unix(seconds, 0).UTC()
	return o, nil
}

// write writes all files of a release.
func write(o options) error {
	programs, err := programsIn(o.bin)
	if err != nil {
		return err
	}
	modules, err := modulesOf(slices.Collect(maps.Values(programs)))
	if err != nil {
		return err
	}
	debian, err := debianPackages("hack/image/debian.txt")
	if err != nil {
		return err
	}
	made := map[string][]byte{"THIRD_PARTY_LICENSES": thirdParty(modules)}
	if err := errors.Join(
		addPrograms(o, made, programs), addChart(o, made), addManifests(o, made), addBills(o, made, modules, debian),
	); err != nil {
		return err
	}
	for name, content := range made {
		if err := os.WriteFile(filepath.Join(o.out, name), content, 0o644); err != nil { //nolint:gosec // for everybody
			return err
		}
	}
	return writeSums(o.out)
}

// programsIn returns the paths of the programs in a folder by system, as linux-amd64.
func programsIn(dir string) (map[string]string, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "sluice-*-*"))
	if err != nil {
		return nil, err
	}
	all := map[string]string{}
	for _, path := range paths {
		system := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(path), "sluice-"), ".exe")
		all[system] = path
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("no sluice-OS-ARCHITECTURE in %s: run make build-all", dir)
	}
	return all, nil
}
