#!/usr/bin/env bash
# What cluster-gcp.yaml needs on Google Cloud beside the machines: a network that lets in only SSH from you, two
# service accounts, a bucket, and a database. Run it with your own values; what is there already stays as it is, so it
# may be repeated at any time, also when it has failed, or to let your new address in:
#
#   PROJECT=my-project REGION=us-central1 OPERATOR_CIDR=203.0.113.7/32 bash examples/gcp-prepare.sh
#
# Give it a project of its own: the head's account may rent and end any machine of the project, since the role for it
# (compute.instanceAdmin.v1) holds for the whole project.
#
# The database costs money until it is deleted (db-f1-micro with 10 GB: see https://cloud.google.com/sql/pricing).
# To be rid of it all, after `ray down`: `gcloud sql instances delete cifar-ray`, `gcloud storage rm -r gs://BUCKET`,
# then the firewall rules, the network, the secret and the service accounts of these names.
#
# NOT YET PROVEN: bash accepts its syntax; it has not been run against Google Cloud.
set -euo pipefail
: "${PROJECT:?}" "${REGION:?}" "${OPERATOR_CIDR:?}"
[[ $OPERATOR_CIDR =~ ^[0-9.]+/(1[6-9]|2[0-9]|3[0-2])$ ]] || {
  echo "OPERATOR_CIDR must be your own addresses, such as 203.0.113.7/32, and no wider than /16; got $OPERATOR_CIDR" >&2
  exit 2
}

there() { "$@" >/dev/null 2>&1; }
# A service account that is new is not known everywhere at once.
persistently() {
  for pause in 5 10 20 40; do
    "$@" >/dev/null && return
    sleep "$pause"
  done
  "$@" >/dev/null
}

bucket=$PROJECT-cifar-ray
gcloud config set project "$PROJECT"
gcloud services enable compute.googleapis.com iam.googleapis.com cloudresourcemanager.googleapis.com \
  sqladmin.googleapis.com secretmanager.googleapis.com servicenetworking.googleapis.com

# The network `default` lets SSH in from everywhere; this one lets nothing in but what is said here.
there gcloud compute networks describe cifar-ray ||
  gcloud compute networks create cifar-ray --subnet-mode=custom
there gcloud compute networks subnets describe cifar-ray --region="$REGION" ||
  gcloud compute networks subnets create cifar-ray --network=cifar-ray --region="$REGION" --range=10.77.0.0/20 \
    --enable-private-ip-google-access
if there gcloud compute firewall-rules describe cifar-ray-ssh; then
  gcloud compute firewall-rules update cifar-ray-ssh --source-ranges="$OPERATOR_CIDR"
else
  gcloud compute firewall-rules create cifar-ray-ssh --network=cifar-ray --allow=tcp:22 \
    --source-ranges="$OPERATOR_CIDR" --target-tags=cifar-ray
fi
there gcloud compute firewall-rules describe cifar-ray-inside ||
  gcloud compute firewall-rules create cifar-ray-inside --network=cifar-ray --allow=all \
    --source-tags=cifar-ray --target-tags=cifar-ray

there gcloud storage buckets describe "gs://$bucket" ||
  gcloud storage buckets create "gs://$bucket" --location="$REGION" --uniform-bucket-level-access \
    --public-access-prevention

# The head rents and ends machines (of the whole project: see above) and gives them the worker's account; a worker
# reaches the bucket alone.
head=cifar-ray-head@$PROJECT.iam.gserviceaccount.com
worker=cifar-ray-worker@$PROJECT.iam.gserviceaccount.com
for account in "$head" "$worker"; do
  there gcloud iam service-accounts describe "$account" || gcloud iam service-accounts create "${account%@*}"
done
persistently gcloud projects add-iam-policy-binding "$PROJECT" --member="serviceAccount:$head" \
  --role=roles/compute.instanceAdmin.v1 --condition=None
persistently gcloud iam service-accounts add-iam-policy-binding "$worker" --member="serviceAccount:$head" \
  --role=roles/iam.serviceAccountUser
for account in "$head" "$worker"; do
  persistently gcloud storage buckets add-iam-policy-binding "gs://$bucket" --member="serviceAccount:$account" \
    --role=roles/storage.objectUser
done

# MLflow's database, with an address inside the network only, and its address with the password as a secret.
there gcloud compute addresses describe cifar-ray-services --global ||
  gcloud compute addresses create cifar-ray-services --global --purpose=VPC_PEERING --prefix-length=20 \
    --network=cifar-ray
[ -n "$(gcloud services vpc-peerings list --network=cifar-ray --format='value(peering)')" ] ||
  gcloud services vpc-peerings connect --service=servicenetworking.googleapis.com --ranges=cifar-ray-services \
    --network=cifar-ray
there gcloud sql instances describe cifar-ray ||
  gcloud sql instances create cifar-ray --database-version=POSTGRES_16 --edition=enterprise --tier=db-f1-micro \
    --region="$REGION" --network=cifar-ray --no-assign-ip --storage-size=10
there gcloud sql databases describe mlflow --instance=cifar-ray ||
  gcloud sql databases create mlflow --instance=cifar-ray
user=(mlflow --instance=cifar-ray)
secret=cifar-ray-mlflow-database
if ! there gcloud sql users describe "${user[@]}" ||
  ! there gcloud secrets versions describe latest --secret="$secret"; then
  # In a file of a folder that only you can read, the password is in no list of processes.
  private=$(mktemp -d)
  trap 'rm -rf "$private"' EXIT
  password=$(openssl rand -hex 20)
  printf -- '--password: "%s"\n' "$password" >"$private/flags.yaml"
  verb=create
  ! there gcloud sql users describe "${user[@]}" || verb=set-password
  gcloud sql users "$verb" "${user[@]}" --flags-file="$private/flags.yaml"
  host=$(gcloud sql instances describe cifar-ray --format='value(ipAddresses[0].ipAddress)')
  there gcloud secrets describe "$secret" || gcloud secrets create "$secret"
  printf 'postgresql+psycopg2://mlflow:%s@%s:5432/mlflow?sslmode=require' "$password" "$host" |
    gcloud secrets versions add "$secret" --data-file=-
fi
persistently gcloud secrets add-iam-policy-binding "$secret" --member="serviceAccount:$head" \
  --role=roles/secretmanager.secretAccessor
echo "bucket: gs://$bucket"
