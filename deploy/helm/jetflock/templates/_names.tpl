{{- define "jetflock.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* (dict "root" $ "component" "worker-demo") */}}
{{- define "jetflock.selector" -}}
app.kubernetes.io/name: {{ default .root.Chart.Name .root.Values.nameOverride | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "jetflock.labels" -}}
{{ include "jetflock.selector" . }}
app.kubernetes.io/part-of: jetflock
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* (dict "root" $ "image" "frontend") */}}
{{- define "jetflock.image" -}}
{{- printf "%s-%s:%s" .root.Values.image.repository .image (default .root.Chart.AppVersion .root.Values.image.tag) -}}
{{- end -}}

{{- define "jetflock.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "jetflock.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* Names of NATS, as its own chart makes them. */}}
{{- define "jetflock.natsFullname" -}}
{{- $nats := .Values.nats -}}
{{- $name := default "nats" $nats.nameOverride -}}
{{- if $nats.fullnameOverride -}}
{{- $nats.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "jetflock.natsUrl" -}}
{{- if .Values.nats.enabled -}}
nats://{{ include "jetflock.natsFullname" . }}:4222
{{- else -}}
{{- .Values.nats.url -}}
{{- end -}}
{{- end -}}

{{/* The headless service: KEDA asks the leader of a consumer, a pod, by its name under it. */}}
{{- define "jetflock.natsMonitoring" -}}
{{- if .Values.nats.monitoringEndpoint -}}
{{- .Values.nats.monitoringEndpoint -}}
{{- else if .Values.nats.enabled -}}
{{- printf "%s-headless.%s.svc:8222" (include "jetflock.natsFullname" .) .Release.Namespace -}}
{{- end -}}
{{- end -}}

{{/* The pool of a served name: pool_slug of shared/subjects.py. */}}
{{- define "jetflock.pool" -}}
{{- $readable := regexReplaceAll "[^A-Za-z0-9]+" . "-" | lower | trimAll "-" | trunc 40 | default "model" -}}
{{- printf "%s-%s" $readable (sha256sum . | trunc 8) -}}
{{- end -}}

{{/* As JSON: the defaults of `worker`, overridden by the entry of `models`, and its names. */}}
{{- define "jetflock.models" -}}
{{- $models := list -}}
{{- range .Values.models -}}
{{- $model := mergeOverwrite (deepCopy $.Values.worker) . -}}
{{- $served := default (ternary (base .model) .model (hasPrefix "/" .model)) .servedName -}}
{{- $pool := include "jetflock.pool" $served -}}
{{- $consumers := list -}}
{{- range $.Values.queue.consumers -}}
{{- $consumers = append $consumers (printf "%s_%s" $pool .) -}}
{{- end -}}
{{- $_ := set $model "servedName" $served -}}
{{- $_ := set $model "pool" $pool -}}
{{- $_ := set $model "consumers" $consumers -}}
{{- $_ := set $model "component" (printf "worker-%s" .name) -}}
{{- $_ := set $model "fullname" (printf "%s-worker-%s" (include "jetflock.fullname" $) .name) -}}
{{- $models = append $models $model -}}
{{- end -}}
{{- dict "models" $models | toJson -}}
{{- end -}}

{{/* Bytes of a quantity: 20Gi. */}}
{{- define "jetflock.bytes" -}}
{{- $units := dict "" 1 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 -}}
{{- $unit := regexFind "[A-Za-z]*$" (toString .) -}}
{{- if not (hasKey $units $unit) -}}
{{- fail (printf "nats.config.jetstream.fileStore: %q is no quantity such as 20Gi" (toString .)) -}}
{{- end -}}
{{- mulf (trimSuffix $unit (toString .) | float64) (get $units $unit) | int64 -}}
{{- end -}}

{{/* What the streams may take on each server, without cards and heartbeats. */}}
{{- define "jetflock.storedBytes" -}}
{{- with .Values.streams -}}
{{- add (int64 .queueMaxBytes) (int64 .logMaxBytes) (int64 .resultsMaxBytes) (int64 .responseStoreBytes) (int64 .deadMaxBytes) (int64 .objectsMaxBytes) (mul 2 (int64 .filesMaxBytes)) (mul 4 (int64 .keysMaxBytes)) (ternary (int64 .billsMaxBytes) 0 (ne (int64 .billsTtlSeconds) 0)) -}}
{{- end -}}
{{- end -}}
